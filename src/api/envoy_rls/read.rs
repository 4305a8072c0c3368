//! `RateLimitRequest` → [`Request`], within bounds.

use tonic::Status;

use crate::{
    api::bounds::Bounds,
    model::request::{Entry, Override, Request, Unit},
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor},
        service::ratelimit::v3::RateLimitRequest,
        r#type::v3::RateLimitUnit,
    },
};

/// Reads a message within bounds.
///
/// # Errors
/// `INVALID_ARGUMENT` with a text that names the bound, or the override that cannot be.
pub fn request(message: &RateLimitRequest, bounds: Bounds) -> Result<Request<'_>, Status> {
    let mut request = named(&message.domain, &message.descriptors, bounds)?;
    request.hits_addend = message.hits_addend;
    Ok(request)
}

/// Reads domain and descriptors within bounds.
///
/// # Errors
/// As [`request`].
pub fn named<'m>(
    domain: &'m str,
    descriptors: &'m [RateLimitDescriptor],
    bounds: Bounds,
) -> Result<Request<'m>, Status> {
    let count = descriptors.len();
    if count > bounds.max_descriptors {
        return Err(beyond(
            "descriptors in a request",
            count,
            bounds.max_descriptors,
        ));
    }
    if domain.len() > bounds.max_key {
        return Err(beyond("bytes in a domain", domain.len(), bounds.max_key));
    }
    let mut request = Request::new(domain);
    for (index, wire) in descriptors.iter().enumerate() {
        check(wire, bounds)?;
        let entries = wire.entries.iter();
        let entries = entries.map(|entry| Entry {
            key: &entry.key,
            value: &entry.value,
        });
        let descriptor = request.add(entries);
        descriptor.hits_addend = wire.hits_addend;
        descriptor.is_negative_hits = wire.is_negative_hits;
        if let Some(limit) = &wire.limit {
            descriptor.limit = Some(override_limit(index, *limit)?);
        }
    }
    Ok(request)
}

/// Checks a descriptor against the bounds.
///
/// # Errors
/// `INVALID_ARGUMENT` with a text that names the bound.
pub fn check(wire: &RateLimitDescriptor, bounds: Bounds) -> Result<(), Status> {
    if wire.entries.len() > bounds.max_entries {
        return Err(beyond(
            "entries in a descriptor",
            wire.entries.len(),
            bounds.max_entries,
        ));
    }
    for entry in &wire.entries {
        if entry.key.len() > bounds.max_key {
            return Err(beyond("bytes in a key", entry.key.len(), bounds.max_key));
        }
        if entry.value.len() > bounds.max_value {
            return Err(beyond(
                "bytes in a value",
                entry.value.len(),
                bounds.max_value,
            ));
        }
    }
    Ok(())
}

fn beyond(what: &str, found: usize, most: usize) -> Status {
    Status::invalid_argument(format!("{found} {what}, at most {most} are allowed"))
}

fn override_limit(
    index: usize,
    wire: rate_limit_descriptor::RateLimitOverride,
) -> Result<Override, Status> {
    let unit = match RateLimitUnit::try_from(wire.unit) {
        Ok(RateLimitUnit::Second) => Unit::Second,
        Ok(RateLimitUnit::Minute) => Unit::Minute,
        Ok(RateLimitUnit::Hour) => Unit::Hour,
        Ok(RateLimitUnit::Day) => Unit::Day,
        Ok(RateLimitUnit::Month) => Unit::Month,
        Ok(RateLimitUnit::Year) => Unit::Year,
        Ok(RateLimitUnit::Unknown) | Err(_) => {
            return Err(Status::invalid_argument(format!(
                "descriptors[{index}].limit.unit is {}, but must be one of SECOND, MINUTE, HOUR, \
                 DAY, MONTH, YEAR",
                wire.unit
            )));
        }
    };
    Ok(Override {
        requests_per_unit: wire.requests_per_unit,
        unit,
        unit_multiplier: wire.unit_multiplier.unwrap_or(1).max(1),
    })
}
