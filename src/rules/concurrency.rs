//! A limit on work in flight, as a rule states it.

use std::sync::Arc;

use crate::{
    algorithm::concurrency::{
        law::LawSettings,
        real::{real, whole},
    },
    model::{lease::Criticality, time::Span},
};

/// `concurrency:` of a rule. [`ConcurrencyRule::fixed`] has the defaults of every knob.
#[derive(Clone, Debug, PartialEq)]
pub struct ConcurrencyRule {
    /// What refusals call it.
    pub name: Option<Arc<str>>,
    /// The rule's path: names the limit in metrics, and finds it again after a reload.
    pub path: Arc<str>,
    /// How many permits there are.
    pub limit: LawSettings,
    /// Length of the windows that an adaptive limit is fed with; none feeds it each request.
    /// See [`LawSettings::default_window`].
    pub window: Option<Span>,
    /// Life of a lease whose caller names none. Default 30 s.
    pub lease_ttl: Span,
    /// Longest life of a lease, renewals included, and the longest TTL. Default 10 min.
    pub max_lifetime: Span,
    /// How refused requests wait for a permit.
    pub waiting: Waiting,
    /// Who is refused first.
    pub shedding: Shedding,
    /// Several callers share it: a refusal is not the caller's own fault (503, not 429).
    pub shared: bool,
    /// Evaluate and count, never refuse.
    pub shadow: bool,
    /// What is done with the leases that a restart may have forgotten.
    pub on_restart: OnRestart,
    /// What is done when the limit falls below what is in flight.
    pub on_shrink: OnShrink,
    /// When the rate units that were taken together with a lease are given back.
    pub refund_on: RefundOn,
    /// Requests that do not say how many permits they need are given what was learned, up to so
    /// many; none: one permit. See [`crate::algorithm::concurrency::weight`].
    pub most_weight: Option<u64>,
    /// How the mean hold is estimated.
    pub estimates: Estimates,
    /// What refused callers are told.
    pub hints: Hints,
    /// What is remembered for the sake of releases that come without a lease.
    pub marks: Marks,
    /// When a proxy is taken for dead.
    pub gone: Gone,
    /// What the entries of a descriptor tell besides what is counted.
    pub entries: Entries,
}

/// Keys of descriptor entries that tell something about a request for permits under
/// `ShouldRateLimit`. They are no part of the counted key, and may follow the entries that the
/// rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries {
    /// The first of these that is there names the lease. Default `lease_id`, `x-request-id`;
    /// Envoy fills it with the request's id. Without one the lease is anonymous.
    pub lease: Box<[Box<str>]>,
    /// An entry with this key and value makes the descriptor a release. Default `op`, `release`:
    /// for Envoy 1.33 to 1.37, which have no `is_negative_hits`.
    pub release: (Box<str>, Box<str>),
    /// The HTTP status of the response. Default `status`.
    pub status: Box<str>,
    /// Envoy's response flags. Default `flags`.
    pub flags: Box<str>,
    /// How long the request took, in milliseconds. Default `duration_ms`.
    pub duration: Box<str>,
    /// `critical_plus`, `critical`, `sheddable_plus` or `sheddable`. Default `criticality`.
    pub criticality: Box<str>,
    /// Whose fair share the request counts against. Default `tenant_share`.
    pub tenant: Box<str>,
}

impl Default for Entries {
    fn default() -> Self {
        Self {
            lease: ["lease_id".into(), "x-request-id".into()].into(),
            release: ("op".into(), "release".into()),
            status: "status".into(),
            flags: "flags".into(),
            duration: "duration_ms".into(),
            criticality: "criticality".into(),
            tenant: "tenant_share".into(),
        }
    }
}

impl Entries {
    /// Whether an entry of this key only tells, and is not counted by.
    pub fn only_tells(&self, key: &str) -> bool {
        let others = [
            &self.release.0,
            &self.status,
            &self.flags,
            &self.duration,
            &self.criticality,
            &self.tenant,
        ];
        self.lease.iter().chain(others).any(|known| **known == *key)
    }
}

/// How refused requests wait, in the server, for a permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Longest wait of a request whose caller says nothing. Default none.
    pub max_wait: Span,
    /// Most requests that wait for one key. Default 1000.
    pub max_waiters: u64,
    /// Target for wait and work together: bounds the queue by Little's law as well.
    pub queue_target: Option<Span>,
    /// Newest first once the queue was not empty for 100 ms.
    pub newest_first: bool,
    /// A request that is too heavy for the free permits stops lighter ones from overtaking it
    /// after this long. None: they overtake for ever.
    pub heavy_patience: Option<Span>,
    /// Tenants below their fair share wait this long; tenants above it get a permit only while
    /// nobody waits. None: no fairness.
    pub under_share_wait: Option<Span>,
}

/// Who is refused first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shedding {
    /// A class passes while fewer permits than this fraction of the limit are in flight. In the
    /// order of [`Criticality::ALL`].
    Thresholds([f64; 4]),
    /// Everybody waits this long, the more critical in front.
    PriorityWait(Span),
}

impl Shedding {
    /// Fraction of the limit that a class may fill.
    ///
    /// A cohort (0…127, stable per user) places its member between the own fraction and that of
    /// the next lower class, so that partial shedding hits the same users all the time.
    pub fn fraction(&self, class: Criticality, cohort: Option<u8>) -> f64 {
        let Self::Thresholds(fractions) = self else {
            return 1.0;
        };
        let rank = usize::from(class.rank());
        let own = fractions.get(rank).copied().unwrap_or(1.0);
        let next = fractions.get(rank + 1).copied().unwrap_or(own);
        let place = f64::from(cohort.unwrap_or(0).min(127)) / 128.0;
        own + (next - own) * place
    }
}

/// What is done with leases that a restart may have forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnRestart {
    /// Start empty: up to twice the limit is in flight for a while.
    #[default]
    Forget,
    /// Refuse until one `lease_ttl` has passed; holders may re-attach meanwhile.
    Quarantine,
    /// Refuse for 500 ms, in which sessions come back and present their leases.
    Reattach,
    /// The leases of the life before are known. Where they are not, as in a server that starts,
    /// it is a quarantine.
    Snapshot,
}

impl OnRestart {
    /// How long after a restart nothing new is granted.
    pub const fn closed_for(self, lease_ttl: Span) -> Span {
        match self {
            Self::Forget | Self::Snapshot => Span::ZERO,
            Self::Quarantine => lease_ttl,
            Self::Reattach => Span::from_millis(500),
        }
    }
}

/// What is done when the limit falls below what is in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnShrink {
    /// Nothing: leases end by themselves.
    #[default]
    Keep,
    /// The newest leases of sessions are revoked until it fits.
    RevokeNewest,
}

/// When the rate units that were taken together with a lease are given back. Default never: what
/// was admitted was admitted.
///
/// All units of the request are meant, whichever of its items they belong to; of several rules in
/// one lease it is enough that one says so. What has come back by itself meanwhile (a window that
/// ended, a bucket that is full again) is not given back twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefundOn {
    /// The holder says at release that the work failed for want of capacity.
    pub dropped: bool,
    /// Nobody says how the work ended: the lease expired, or its session was lost.
    pub expired: bool,
}

impl RefundOn {
    /// Whether there is anything that gives units back.
    pub const fn is_never(self) -> bool {
        !self.dropped && !self.expired
    }

    /// What either of two rules gives back for.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self {
            dropped: self.dropped || other.dropped,
            expired: self.expired || other.expired,
        }
    }
}

/// How the mean hold is estimated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimates {
    /// Mean hold before anything is known. Default 1 s.
    pub prior_hold: Span,
    /// Weight of the newest hold in the mean of finished holds. Default 0.2.
    pub alpha: f64,
    /// Memory of λ, L and of the hold estimate that counts leases still held. Default 2 s.
    pub memory: Span,
    /// Whether leases still held count in hints. Default yes.
    pub exposure: bool,
}

/// What refused callers are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hints {
    /// Refused callers get different slots. Default yes.
    pub booking: bool,
    /// Largest random addition, as a fraction of the hint. Default 0.1.
    pub jitter: f64,
    /// What is told when the limit is 0. Default 1 s.
    pub when_drained: Span,
}

/// How long what a proxy's releases may still refer to is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// A release that came before its acquire waits for it this long: the acquire is then answered
    /// OK and creates no lease. Default 2 s.
    pub early_release: Span,
    /// A refusal, or a grant that was undone, waits this long for the release that a proxy sends
    /// all the same. Default 5 s.
    pub ghost: Span,
}

impl Default for Marks {
    fn default() -> Self {
        Self {
            early_release: Span::from_secs(2),
            ghost: Span::from_secs(5),
        }
    }
}

impl Shedding {
    /// Permits of `limit` that a class may fill.
    pub fn allowed(&self, limit: u64, class: Criticality, cohort: Option<u8>) -> u64 {
        let fraction = self.fraction(class, cohort);
        // Rounded up: with a limit of 1 there is a permit for every class. The hair keeps
        // 0.9 · 30 at 27.
        whole((real(limit) * fraction - 1e-9).ceil()).min(limit)
    }
}

/// What is done with the leases of a proxy (`ShouldRateLimit`) whose connections are gone: it has
/// probably died, and their releases will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// How long all connections of a peer have to be gone. Default 1 s; none: never.
    pub after: Option<Span>,
    /// What its leases have left then, at the most. Default 10 s.
    pub grace: Span,
}

impl Default for Gone {
    fn default() -> Self {
        Self {
            after: Some(Span::from_secs(1)),
            grace: Span::from_secs(10),
        }
    }
}

impl ConcurrencyRule {
    /// A fixed limit with the defaults of everything else.
    pub fn fixed(path: &str, limit: u64) -> Self {
        Self::new(path, LawSettings::Fixed(limit))
    }

    /// A limit with the defaults of everything else.
    pub fn new(path: &str, limit: LawSettings) -> Self {
        Self {
            name: None,
            path: path.into(),
            limit,
            window: Some(limit.default_window()),
            lease_ttl: Span::from_secs(30),
            max_lifetime: Span::from_secs(600),
            waiting: Waiting {
                max_wait: Span::ZERO,
                max_waiters: 1_000,
                queue_target: None,
                newest_first: false,
                heavy_patience: None,
                under_share_wait: None,
            },
            shedding: Shedding::Thresholds([1.0, 1.0, 0.9, 0.8]),
            shared: false,
            shadow: false,
            on_restart: OnRestart::default(),
            on_shrink: OnShrink::default(),
            refund_on: RefundOn::default(),
            most_weight: None,
            estimates: Estimates {
                prior_hold: Span::from_secs(1),
                alpha: 0.2,
                memory: Span::from_secs(2),
                exposure: true,
            },
            hints: Hints {
                booking: true,
                jitter: 0.1,
                when_drained: Span::from_secs(1),
            },
            marks: Marks::default(),
            gone: Gone::default(),
            entries: Entries::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cohort_lies_between_its_class_and_the_next() {
        let shedding = Shedding::Thresholds([1.0, 1.0, 0.9, 0.8]);
        let fraction = |class, cohort| (shedding.fraction(class, cohort) * 1e4).round() / 1e4;
        assert!((fraction(Criticality::CriticalPlus, Some(127)) - 1.0).abs() < 1e-9);
        assert!((fraction(Criticality::Critical, None) - 1.0).abs() < 1e-9);
        assert!((fraction(Criticality::Critical, Some(64)) - 0.95).abs() < 1e-9);
        assert!((fraction(Criticality::SheddablePlus, Some(64)) - 0.85).abs() < 1e-9);
        assert!((fraction(Criticality::Sheddable, Some(127)) - 0.8).abs() < 1e-9);
        let wait = Shedding::PriorityWait(Span::from_millis(100));
        assert!((wait.fraction(Criticality::Sheddable, None) - 1.0).abs() < 1e-9);
    }
}
