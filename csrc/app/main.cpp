#include "app/command_line.h"

int main(int argc, char** argv) { return tercet::run_tercet({argv + 1, argv + argc}); }
