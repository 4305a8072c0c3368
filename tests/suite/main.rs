//! One binary, one module per subject.
#![cfg(test)]
#![expect(missing_docs, reason = "tests document themselves by their names")]

mod config;
