//! The scripts, put together from their files.

use std::sync::LazyLock;

/// The algorithms without what calls them, one a file.
macro_rules! algorithms {
    () => {
        concat!(
            include_str!("lua/exact.lua"),
            include_str!("lua/fixed_window.lua"),
            include_str!("lua/sliding_window.lua"),
            include_str!("lua/bucket.lua"),
            include_str!("lua/sliding_log.lua"),
        )
    };
}

/// `decide.lua` and what it uses.
pub(super) const DECIDE: &str = concat!(algorithms!(), include_str!("lua/decide.lua"));

/// The leases; `decide.lua` is a function there.
pub(super) const LEASES: &str = concat!(
    algorithms!(),
    "local function decide_rates(KEYS, ARGV)\n",
    include_str!("lua/decide.lua"),
    "\nend\n",
    include_str!("lease/lua/counter.lua"),
    include_str!("lease/lua/record.lua"),
    include_str!("lease/lua/acquire.lua"),
    include_str!("lease/lua/release.lua"),
);

/// The hash by which a server knows [`DECIDE`].
pub(super) fn decide_hash() -> &'static str {
    static HASH: LazyLock<String> = LazyLock::new(|| hash(DECIDE));
    &HASH
}

/// The hash by which a server knows [`LEASES`].
pub(super) fn leases_hash() -> &'static str {
    static HASH: LazyLock<String> = LazyLock::new(|| hash(LEASES));
    &HASH
}

fn hash(script: &str) -> String {
    redis::Script::new(script).get_hash().to_owned()
}
