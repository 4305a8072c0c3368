//! What is counted of a rule, by the reference's names.

use crate::telemetry::stripe::Striped;

/// What is counted per stat path, in units of cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum RuleStat {
    /// Everything that was asked of a limit.
    TotalHits,
    /// What went over it.
    OverLimit,
    /// What passed above the near line, or would have before it went over.
    NearLimit,
    /// What passed.
    WithinLimit,
    /// What went over in a rule in shadow mode.
    ShadowMode,
    /// What a local cache refused without asking the shared store.
    OverLimitWithLocalCache,
    /// Requests for a domain that is not there; the path is the domain.
    DomainNotFound,
}

impl RuleStat {
    /// Every statistic, in the order of their numbers.
    pub const ALL: [Self; 7] = [
        Self::TotalHits,
        Self::OverLimit,
        Self::NearLimit,
        Self::WithinLimit,
        Self::ShadowMode,
        Self::OverLimitWithLocalCache,
        Self::DomainNotFound,
    ];

    /// The reference's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TotalHits => "total_hits",
            Self::OverLimit => "over_limit",
            Self::NearLimit => "near_limit",
            Self::WithinLimit => "within_limit",
            Self::ShadowMode => "shadow_mode",
            Self::OverLimitWithLocalCache => "over_limit_with_local_cache",
            Self::DomainNotFound => "domain_not_found",
        }
    }
}

/// Sums in the order of [`RuleStat::ALL`].
pub type Sums = [u64; RuleStat::ALL.len()];

/// The counters of one stat path.
#[derive(Debug, Default)]
pub struct RuleStats(Striped<{ RuleStat::ALL.len() }>);

impl RuleStats {
    /// Goes on from these sums.
    pub fn starting_at(sums: Sums) -> Self {
        Self(Striped::starting_at(sums))
    }

    /// Adds to one statistic.
    pub fn add(&self, stat: RuleStat, by: u64) {
        self.add_each([(stat, by)]);
    }

    /// Adds to several statistics.
    #[inline]
    pub fn add_each<const N: usize>(&self, each: [(RuleStat, u64); N]) {
        self.0.add_each(each.map(|(stat, by)| (stat as usize, by)));
    }

    /// All sums.
    pub fn sums(&self) -> Sums {
        self.0.sums()
    }
}
