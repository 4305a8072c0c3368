//! How large a request may be. What lies beyond is refused with a text that names the bound.

/// Bounds on everything in a request that a caller controls. Each is a flag of `porteiro serve`.
#[expect(
    clippy::struct_field_names,
    reason = "`bounds.max_key` reads as what it is"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Largest request message, in bytes; beyond it `RESOURCE_EXHAUSTED`. Default 64 KiB.
    pub max_message: usize,
    /// Most descriptors in a request; beyond it `INVALID_ARGUMENT`, as for all that follow.
    /// Default 32.
    pub max_descriptors: usize,
    /// Most entries in a descriptor. Default 16.
    pub max_entries: usize,
    /// Longest key of an entry, in bytes; holds for the domain as well. Default 1 KiB.
    pub max_key: usize,
    /// Longest value of an entry, in bytes. Default 1 KiB.
    pub max_value: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            max_message: 64 * 1024,
            max_descriptors: 32,
            max_entries: 16,
            max_key: 1024,
            max_value: 1024,
        }
    }
}
