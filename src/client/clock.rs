//! The client's countdowns run on tokio's clock, which tests can pause.

use tokio::time::Instant;

/// The present instant.
#[expect(clippy::disallowed_methods, reason = "the client's one door for time")]
pub(super) fn now() -> Instant {
    Instant::now()
}
