//! Why the store did not decide.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Why the store did not decide. The answer is then what the domain says for that case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StoreError {
    /// No answer in time. Whether the request was counted is not known.
    #[error("the store did not answer in time")]
    Timeout,
    /// Too many requests wait already.
    #[error("too many requests wait for the store")]
    Overloaded,
    /// There is no connection, or the store failed lately and is being probed.
    #[error("the store is not reachable")]
    Unreachable,
    /// The connection broke. Whether the request was counted is not known.
    #[error("the connection to the store broke")]
    Broken,
    /// The store got the request too late to decide it; nothing was counted.
    #[error("the request reached the store too late")]
    Late,
    /// User or password are wrong, or the user may not do it.
    #[error("the store refuses our credentials")]
    Denied,
    /// The store's memory is full; nothing was counted.
    #[error("the store's memory is full")]
    Full,
    /// A server that may not write: it was a primary before.
    #[error("the store is read-only")]
    ReadOnly,
    /// The store or its cluster is not ready: loading, or without a primary for the slot.
    #[error("the store is not ready")]
    NotReady,
    /// Any other answer that is none, in the store or in our script.
    #[error("the store answered something else")]
    Unexpected,
}

impl StoreError {
    /// All of them, for counters.
    pub const ALL: [Self; 10] = [
        Self::Timeout,
        Self::Overloaded,
        Self::Unreachable,
        Self::Broken,
        Self::Late,
        Self::Denied,
        Self::Full,
        Self::ReadOnly,
        Self::NotReady,
        Self::Unexpected,
    ];

    /// Name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Overloaded => "overloaded",
            Self::Unreachable => "unreachable",
            Self::Broken => "broken",
            Self::Late => "late",
            Self::Denied => "denied",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::NotReady => "not_ready",
            Self::Unexpected => "unexpected",
        }
    }

    pub(super) fn of(error: &RedisError) -> Self {
        if let Some("OOM") = error.code() {
            return Self::Full;
        }
        match error.code() {
            Some("NOAUTH" | "WRONGPASS" | "NOPERM") => return Self::Denied,
            Some("MISCONF" | "NOREPLICAS") => return Self::NotReady,
            _ => {}
        }
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Denied,
            ErrorKind::Io if error.is_timeout() => Self::Timeout,
            ErrorKind::Io => Self::Broken,
            ErrorKind::ClusterConnectionNotFound
            | ErrorKind::MasterNameNotFoundBySentinel
            | ErrorKind::EmptySentinelList => Self::NotReady,
            ErrorKind::Server(kind) => match kind {
                ServerErrorKind::ReadOnly => Self::ReadOnly,
                ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                // Of a slot that moves on faster than it is followed.
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::TryAgain => Self::NotReady,
                _ => Self::Unexpected,
            },
            _ => Self::Unexpected,
        }
    }

    /// Whether another connection may do better: the address may mean another server by now, or
    /// the credentials may have changed. A cluster's connection finds other nodes by itself, and
    /// must not be given up because one of them is away.
    pub(super) fn needs_new_connection(self, cluster: bool) -> bool {
        match self {
            Self::Denied | Self::ReadOnly => true,
            Self::Broken | Self::Timeout => !cluster,
            _ => false,
        }
    }

    /// Whether, in a cluster, another node may serve the slot by now.
    pub(super) fn may_have_moved(self) -> bool {
        matches!(self, Self::Broken | Self::Timeout | Self::NotReady)
    }
}
