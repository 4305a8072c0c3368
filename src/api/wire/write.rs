//! Code and statuses of a `RateLimitResponse`, encoded without making the message: they are what
//! every answer has, and for most it is all.

use super::numbers::{LimitNumbers, StatusNumbers, code};
use crate::engine::verdict::Verdict;

// Tags of the protocol: number of the field × 8 + 2 for what has a length, + 0 for a number.
const OVERALL_CODE: u8 = 0x08;
const STATUS: u8 = 0x12;
// Of a status.
const CODE: u8 = 0x08;
const CURRENT_LIMIT: u8 = 0x12;
const LIMIT_REMAINING: u8 = 0x18;
const DURATION_UNTIL_RESET: u8 = 0x22;
// Of a limit.
const REQUESTS_PER_UNIT: u8 = 0x08;
const UNIT: u8 = 0x10;
const NAME: u8 = 0x1a;
const UNIT_MULTIPLIER: u8 = 0x22;
// Of a wrapped number, and of a duration.
const VALUE: u8 = 0x08;
const SECONDS: u8 = 0x08;

/// Appends code and statuses, as
/// [`RateLimit::respond`](crate::api::envoy_rls::RateLimit::respond) puts them into a message.
pub fn write(verdict: &Verdict<'_>, out: &mut Vec<u8>) {
    number(OVERALL_CODE, code(verdict.code) as u64, out);
    for status in verdict.statuses() {
        let numbers = StatusNumbers::of(&status);
        nested(STATUS, out, |out| write_status(&numbers, out));
    }
}

fn write_status(numbers: &StatusNumbers<'_>, out: &mut Vec<u8>) {
    number(CODE, numbers.code as u64, out);
    if let Some(limit) = &numbers.limit {
        nested(CURRENT_LIMIT, out, |out| write_limit(limit, out));
    }
    number(LIMIT_REMAINING, numbers.remaining.into(), out);
    if let Some(limit) = &numbers.limit {
        nested(DURATION_UNTIL_RESET, out, |out| {
            number(SECONDS, limit.reset_seconds, out);
        });
    }
}

fn write_limit(limit: &LimitNumbers<'_>, out: &mut Vec<u8>) {
    number(REQUESTS_PER_UNIT, limit.requests_per_unit.into(), out);
    number(UNIT, limit.unit as u64, out);
    if !limit.name.is_empty() {
        nested(NAME, out, |out| {
            out.extend_from_slice(limit.name.as_bytes());
        });
    }
    if let Some(multiplier) = limit.unit_multiplier {
        nested(UNIT_MULTIPLIER, out, |out| {
            number(VALUE, multiplier.into(), out);
        });
    }
}

/// A field that is a number; 0 is what is read where there is none.
fn number(tag: u8, value: u64, out: &mut Vec<u8>) {
    if value > 0 {
        out.push(tag);
        varint(value, out);
    }
}

/// A field that has a length, which is known when it is written.
pub(in crate::api) fn nested(tag: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    let place = out.len();
    out.push(0);
    write(out);
    let length = out.len() - place - 1;
    if let (Ok(short @ 0..0x80), Some(byte)) = (u8::try_from(length), out.get_mut(place)) {
        *byte = short;
    } else {
        // What was written moves up for a length of several bytes.
        let mut bytes = Vec::with_capacity(4);
        varint(length as u64, &mut bytes);
        out.splice(place..=place, bytes);
    }
}

/// Seven bits a byte, the lowest first; all but the last have the eighth bit.
fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::{
        api::{
            bounds::Bounds,
            envoy_rls::{AnswerOptions, RateLimit},
        },
        config::{LoadOptions, parse},
        engine::{Engine, EngineOptions},
        model::{
            key::KeyHasher,
            request::{Entry, Request},
            time::Clock,
        },
        proto::envoy::service::ratelimit::v3::RateLimitResponse,
        store::memory::{MemoryOptions, MemoryStore},
    };

    #[test]
    fn what_is_written_is_the_message_that_would_be_made() {
        let long = "a name of more than one hundred and twenty-seven bytes ".repeat(3);
        let text = format!(
            "domain: d
descriptors:
- {{key: window, rate_limit: {{unit: hour, requests_per_unit: 300, name: {long}}}}}
- {{key: odd, limits: [{{rate: 70000/3d, algorithm: token_bucket}}, {{rate: 1/90ms}}]}}
- {{key: closed, rate_limit: {{unit: second, requests_per_unit: 0}}}}
- {{key: huge, rate_limit: {{unit: year, requests_per_unit: 4000000000}}}}
- {{key: free, rate_limit: {{unlimited: true}}}}
- {{key: dark, shadow_mode: true, rate_limit: {{unit: day, requests_per_unit: 0, name: dark}}}}
"
        );
        let store = MemoryStore::new(MemoryOptions::default()).into();
        let clock = Clock::machine();
        let engine = Engine::new(clock, KeyHasher::random(), store, EngineOptions::default());
        let loaded = parse(&[("d.yaml", &text)], &LoadOptions::default());
        engine.install(loaded.into_rules().unwrap());
        let service = RateLimit::new(engine.into(), Bounds::default(), AnswerOptions::default());
        let engine = service.engine();
        let installed = engine.installed();
        let mut statuses = 0;
        for domain in ["d", "another"] {
            for keys in [
                &["window", "odd", "closed", "huge", "free", "dark", "none"][..],
                &["window"],
                &["huge", "free"],
            ] {
                let mut request = Request::new(domain);
                for key in keys {
                    request.add([Entry { key, value: "x" }]);
                }
                let mut verdict = Verdict::new();
                engine
                    .decide_in_memory(&installed, &request, engine.clock().now(), &mut verdict)
                    .unwrap();
                let mut made = RateLimitResponse::default();
                service.respond(&request, &verdict, &mut made);
                let mut written = Vec::new();
                write(&verdict, &mut written);
                assert_eq!(RateLimitResponse::decode(&*written), Ok(made), "{keys:?}");
                statuses += verdict.statuses().count();
            }
        }
        assert_eq!(statuses, 20);
    }
}
