//! Leases: permits of concurrency limits that somebody holds for a while.

use std::{fmt, str::FromStr, sync::Arc};

use crate::model::{key::CounterKey, time::Span};

/// Who a connection comes from: an address, or the node that its calls name. Hashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub CounterKey);

/// Name of a lease: 128 bits that nobody can guess and that do not change on renewal. Printed as
/// 26 characters of base32.
///
/// It tells the boot that granted it, so that a server knows a lease of an earlier life without
/// any state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId {
    /// The life of the server that granted it.
    pub boot: u32,
    /// The book that keeps it.
    pub book: u16,
    /// Number of the grant within its book; 40 bits.
    pub sequence: u64,
    /// Random; 40 bits.
    pub secret: u64,
}

const BITS_40: u64 = (1 << 40) - 1;
const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl LeaseId {
    /// Characters of a printed id.
    pub const LENGTH: usize = 26;

    /// Largest sequence and secret.
    pub const MAX_PART: u64 = BITS_40;

    fn bits(self) -> u128 {
        u128::from(self.boot) << 96
            | u128::from(self.book) << 80
            | u128::from(self.sequence & BITS_40) << 40
            | u128::from(self.secret & BITS_40)
    }

    fn from_bits(bits: u128) -> Self {
        let part = |shift: u32, mask: u64| u64::try_from(bits >> shift & u128::from(mask));
        Self {
            boot: u32::try_from(bits >> 96).unwrap_or_default(),
            book: part(80, 0xffff).map_or(0, |book| u16::try_from(book).unwrap_or_default()),
            sequence: part(40, BITS_40).unwrap_or_default(),
            secret: part(0, BITS_40).unwrap_or_default(),
        }
    }
}

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits();
        let mut text = [0_u8; Self::LENGTH];
        for (place, byte) in text.iter_mut().enumerate() {
            // Five bits each from the top; the last character has three bits and two zeros.
            let shift = 123_i32 - 5 * i32::try_from(place).unwrap_or_default();
            let five = match u32::try_from(shift) {
                Ok(shift) => bits >> shift,
                Err(_) => bits << 2,
            };
            let five = usize::try_from(five & 31).unwrap_or_default();
            *byte = ALPHABET.get(five).copied().unwrap_or(b'a');
        }
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

/// A text that is no lease id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a lease id: 26 characters of base32 (a-z, 2-7) are expected")]
pub struct NoLeaseId;

impl FromStr for LeaseId {
    type Err = NoLeaseId;

    fn from_str(text: &str) -> Result<Self, NoLeaseId> {
        if text.len() != Self::LENGTH {
            return Err(NoLeaseId);
        }
        let mut bits = 0_u128;
        for (place, byte) in text.bytes().enumerate() {
            let five = match byte {
                b'a'..=b'z' => byte - b'a',
                b'2'..=b'7' => byte - b'2' + 26,
                _ => return Err(NoLeaseId),
            };
            if place + 1 < Self::LENGTH {
                bits = bits << 5 | u128::from(five);
            } else if five.is_multiple_of(4) {
                bits = bits << 3 | u128::from(five >> 2);
            } else {
                return Err(NoLeaseId);
            }
        }
        Ok(Self::from_bits(bits))
    }
}

/// Who holds leases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Tenant or service; only it may renew and release. Empty: anybody who knows the lease id.
    pub id: Arc<str>,
    /// Pod or process, for people who look.
    pub instance: Arc<str>,
}

/// What became of the work, as the holder says at release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outcome {
    /// Done: its hold counts in the mean.
    Success,
    /// Failed for want of capacity (timeout, overload): counts against an adaptive limit.
    Dropped,
    /// Says nothing about capacity.
    #[default]
    Ignored,
}

impl Outcome {
    /// A label value: lower case.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Dropped => "dropped",
            Self::Ignored => "ignored",
        }
    }
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndedBy {
    /// Its holder gave it back.
    Released,
    /// Its time was over.
    Expired,
    /// Its session was lost.
    SessionLost,
    /// An operator, or a limit that was lowered.
    Revoked,
}

impl EndedBy {
    /// A label value: lower case.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::SessionLost => "session_lost",
            Self::Revoked => "revoked",
        }
    }
}

/// Answer to the release of one lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ReleaseStatus {
    /// The permits are back.
    Released {
        /// How long they were held, as the holder said or as it was seen.
        held: Span,
    },
    /// It had been released before.
    AlreadyReleased,
    /// It had expired.
    Late {
        /// How long ago.
        by: Span,
    },
    /// It had ended with its session.
    SessionLost,
    /// It had been revoked.
    Revoked,
    /// Never heard of, or forgotten since.
    Unknown,
    /// Of an earlier life of the server.
    OtherBoot,
    /// Somebody else holds it.
    NotHolder,
}

impl ReleaseStatus {
    /// A label value: lower case.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Released { .. } => "released",
            Self::AlreadyReleased => "already_released",
            Self::Late { .. } => "late",
            Self::SessionLost => "session_lost",
            Self::Revoked => "revoked",
            Self::Unknown => "unknown",
            Self::OtherBoot => "other_boot",
            Self::NotHolder => "not_holder",
        }
    }
}

/// Answer to the renewal of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewStatus {
    /// It lives on.
    Renewed {
        /// For this long.
        expires_in: Span,
        /// Less than asked, because of its maximum lifetime.
        capped: bool,
    },
    /// It has ended; nothing revives it.
    Gone(EndedBy),
    /// Never heard of, or forgotten since.
    Unknown,
    /// Of an earlier life of the server.
    OtherBoot,
    /// Somebody else holds it.
    NotHolder,
}

/// Answer to a request for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// A lease over all items.
    Granted,
    /// The lease that the same request got before.
    Replayed,
    /// Not now.
    Refused,
    /// More permits than the limit can ever have.
    Never,
    /// An item has no rule, and that is not allowed here.
    UnknownKey,
    /// The same request id came with other items before.
    Conflict,
    /// The lease of the same request has ended.
    Ended(EndedBy),
    /// The server grants nothing more.
    Draining,
    /// A dry run that would have been granted.
    WouldGrant,
}

impl Decision {
    /// A label value: lower case.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Replayed => "replayed",
            Self::Refused => "refused",
            Self::Never => "never",
            Self::UnknownKey => "unknown_key",
            Self::Conflict => "conflict",
            Self::Ended(_) => "ended",
            Self::Draining => "draining",
            Self::WouldGrant => "would_grant",
        }
    }
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A rate limit.
    Rate,
    /// All permits are out.
    Concurrency,
    /// There are permits, but not for this class.
    ShedCriticality,
    /// All permits of a limit that adapts are out.
    ShedAdaptive,
    /// The tenant is above its fair share and others wait.
    FairShare,
    /// Too many wait already.
    QueueFull,
    /// It could not be finished in time.
    Deadline,
    /// Holders of an earlier life of the server are still coming back.
    Restart,
}

impl Cause {
    /// A label value: lower case.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Concurrency => "concurrency",
            Self::ShedCriticality => "shed_criticality",
            Self::ShedAdaptive => "shed_adaptive",
            Self::FairShare => "fair_share",
            Self::QueueFull => "queue_full",
            Self::Deadline => "deadline",
            Self::Restart => "restart",
        }
    }
}

/// How bad it is to refuse a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Criticality {
    /// Never, if possible.
    CriticalPlus,
    /// Users notice.
    #[default]
    Critical,
    /// Partial unavailability is expected.
    SheddablePlus,
    /// Frequent unavailability is expected.
    Sheddable,
}

impl Criticality {
    /// From the most critical to the least.
    pub const ALL: [Self; 4] = [
        Self::CriticalPlus,
        Self::Critical,
        Self::SheddablePlus,
        Self::Sheddable,
    ];

    /// Place in [`Criticality::ALL`].
    pub const fn rank(self) -> u8 {
        match self {
            Self::CriticalPlus => 0,
            Self::Critical => 1,
            Self::SheddablePlus => 2,
            Self::Sheddable => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ids_survive_print_and_parse(boot: u32, book: u16, sequence in 0..=BITS_40, secret in 0..=BITS_40) {
            let id = LeaseId { boot, book, sequence, secret };
            let text = id.to_string();
            prop_assert_eq!(text.len(), LeaseId::LENGTH);
            prop_assert_eq!(text.parse(), Ok(id));
        }

        #[test]
        fn no_text_panics(text in ".{0,30}") {
            let _ = text.parse::<LeaseId>();
        }
    }

    #[test]
    fn every_id_has_one_text() {
        let id = LeaseId {
            boot: 1,
            book: 0,
            sequence: 5,
            secret: BITS_40,
        };
        let text = id.to_string();
        let mut odd = text.clone();
        // The last character has two unused bits: they must be zero.
        odd.pop();
        odd.push('7');
        assert_eq!(odd.parse::<LeaseId>(), Err(NoLeaseId));
        assert_eq!(text.to_uppercase().parse::<LeaseId>(), Err(NoLeaseId));
        assert_eq!(text[1..].parse::<LeaseId>(), Err(NoLeaseId));
        assert_eq!(format!("{text}a").parse::<LeaseId>(), Err(NoLeaseId));
    }
}
