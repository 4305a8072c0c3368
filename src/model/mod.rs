//! The words that every layer uses. Nothing here decides anything.

pub mod key;
pub mod lease;
pub mod limit;
pub mod notation;
pub mod request;
pub mod secret;
mod sip;
pub mod time;
