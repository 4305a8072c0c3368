//! From rule files to [`crate::rules`], with every finding of every file at once.
//!
//! Text becomes a tree with places ([`yaml`]), the tree is checked for shape ([`shape`]) and read
//! into raw structures ([`raw`]), and those are compiled ([`compile`]).

mod answer;
mod compile;
mod concurrency;
mod dialect;
mod expand;
mod finding;
mod lenient;
mod limits;
mod load;
mod matcher;
mod metadata;
mod parse;
mod raw;
mod reader;
mod reload;
mod scalar;
mod shape;
mod units;
mod yaml;

pub use finding::{Finding, Position, Severity};
pub use load::load;
pub use parse::{LoadOptions, Loaded, LoadedDomain, parse};
pub use reload::Reload;
