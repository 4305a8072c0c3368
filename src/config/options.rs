//! What one may choose about the reading of rule files.

/// How rule files are read.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// Several files may have one domain: their descriptors are put together.
    pub merge_domains: bool,
    /// A larger file is refused.
    pub max_file_bytes: u64,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            merge_domains: false,
            max_file_bytes: 16 * 1024 * 1024,
        }
    }
}
