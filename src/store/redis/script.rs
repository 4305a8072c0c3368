//! The script, put together from its files.

use std::sync::LazyLock;

/// `decide.lua` and what it uses, one algorithm a file.
pub(super) const DECIDE: &str = concat!(
    include_str!("lua/exact.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/bucket.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/decide.lua"),
);

/// The hash by which a server knows [`DECIDE`].
pub(super) fn decide_hash() -> &'static str {
    static HASH: LazyLock<String> =
        LazyLock::new(|| redis::Script::new(DECIDE).get_hash().to_owned());
    &HASH
}
