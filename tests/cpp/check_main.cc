#include "tests/cpp/check.h"

// Apart from the rest, so that a program with a main() of its own can use the rest.
int main(int argc, char** argv) { return freescale::check::run_tests(argc, argv); }
