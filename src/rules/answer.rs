//! The contract with clients, as a domain states it (`answer:`).

/// What answers of a domain carry besides the protocol's own fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {}
