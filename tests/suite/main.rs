//! One binary, one module per subject.
#![cfg(test)]

mod config;
