//! A status in the protocol's numbers: the message and the encoded bytes are both made of these.

use crate::{
    engine::verdict::{Code, Status},
    model::request::Unit,
    proto::envoy::service::ratelimit::v3::rate_limit_response::{self, rate_limit},
};

/// What the status of a descriptor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct StatusNumbers<'v> {
    pub(in crate::api) code: rate_limit_response::Code,
    /// The limit that is told, if there is one.
    pub(in crate::api) limit: Option<LimitNumbers<'v>>,
    /// `limit_remaining`; the largest number where there is a rule and it sets no limit.
    pub(in crate::api) remaining: u32,
}

/// `current_limit` and `duration_until_reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::api) struct LimitNumbers<'v> {
    pub(in crate::api) name: &'v str,
    pub(in crate::api) requests_per_unit: u32,
    pub(in crate::api) unit: rate_limit::Unit,
    /// Told only when it is more than 1.
    pub(in crate::api) unit_multiplier: Option<u32>,
    /// Envoy reads the seconds and drops the rest, so they are rounded up here.
    pub(in crate::api) reset_seconds: u64,
}

impl<'v> StatusNumbers<'v> {
    pub(in crate::api) fn of(status: &Status<'v, '_>) -> Self {
        let told = status.told();
        Self {
            code: code(status.code),
            remaining: match &told {
                Some(told) => u32::try_from(told.remaining).unwrap_or(u32::MAX),
                None if status.is_unlimited() => u32::MAX,
                None => 0,
            },
            limit: told.map(|told| LimitNumbers {
                name: told.name,
                requests_per_unit: told.shown.requests_per_unit,
                unit: unit(told.shown.unit),
                unit_multiplier: (told.shown.unit_multiplier > 1)
                    .then_some(told.shown.unit_multiplier),
                reset_seconds: told.reset.as_secs_up(),
            }),
        }
    }
}

/// As the protocol numbers it.
pub(in crate::api) fn code(code: Code) -> rate_limit_response::Code {
    match code {
        Code::Ok => rate_limit_response::Code::Ok,
        Code::OverLimit => rate_limit_response::Code::OverLimit,
    }
}

/// As the protocol numbers it.
fn unit(unit: Option<Unit>) -> rate_limit::Unit {
    use rate_limit::Unit as Wire;
    match unit {
        None => Wire::Unknown,
        Some(Unit::Second) => Wire::Second,
        Some(Unit::Minute) => Wire::Minute,
        Some(Unit::Hour) => Wire::Hour,
        Some(Unit::Day) => Wire::Day,
        Some(Unit::Week) => Wire::Week,
        Some(Unit::Month) => Wire::Month,
        Some(Unit::Year) => Wire::Year,
    }
}
