//! The program: see `porteiro --help`.

fn main() {}
