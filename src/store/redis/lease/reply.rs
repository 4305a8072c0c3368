//! What the script of leases answers.

use redis::Value;
use smallvec::SmallVec;

use crate::{
    model::{
        key::CounterKey,
        lease::{EndedBy, LeaseId, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    store::{
        lease::LeaseView,
        redis::{error::StoreError, number, reply},
    },
};

/// What was decided about a request for permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Word {
    Granted,
    Replayed,
    Conflict,
    Ended(EndedBy),
    Impossible,
    Draining,
    Refused,
    /// It is short and may wait; nothing was changed.
    Short,
    WouldGrant,
    /// Too many leases.
    Full,
    /// Its call was undone before it arrived.
    Void,
    /// A calendar window of its rate limits is another one by the store's clock.
    UnknownWindow,
}

/// The answer to a request for permits.
#[derive(Clone, Debug)]
pub(in crate::store) struct Granting {
    pub(in crate::store) word: Word,
    /// The store's clock.
    pub(in crate::store) now: Timestamp,
    /// What was said about rate limits; empty when they were not asked.
    pub(super) rates: Vec<u8>,
    pub(in crate::store) fence: u64,
    pub(in crate::store) expires_in: Span,
    pub(in crate::store) leases: SmallVec<[LeaseId; 1]>,
    /// When to come back, as far as permits are concerned.
    pub(in crate::store) told: Option<Span>,
    /// In the order of the items of the order.
    pub(in crate::store) states: SmallVec<[State; 2]>,
}

/// One key after a decision.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::store) struct State {
    pub(in crate::store) in_flight: u64,
    pub(in crate::store) mean_hold: f64,
    pub(in crate::store) throughput: f64,
    pub(in crate::store) granted: u64,
    pub(in crate::store) short: bool,
    pub(in crate::store) shadow_short: bool,
    /// Seconds until it is not short.
    pub(in crate::store) wait: f64,
}

/// One key as it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(in crate::store) struct Standing {
    pub(in crate::store) in_flight: u64,
    pub(in crate::store) leases: u64,
    /// How far ahead slots are promised.
    pub(in crate::store) promised: Span,
    pub(in crate::store) mean_hold: f64,
    pub(in crate::store) arrived: f64,
    pub(in crate::store) completed: f64,
    pub(in crate::store) time: f64,
    pub(in crate::store) ghosts: u64,
    pub(in crate::store) area: f64,
}

/// A script answered something else.
const UNEXPECTED: StoreError = StoreError::Unexpected;

fn texts(value: Value) -> Result<Vec<Vec<u8>>, StoreError> {
    let Value::Array(values) = value else {
        return Err(UNEXPECTED);
    };
    let texts: Result<Vec<Vec<u8>>, StoreError> = values
        .into_iter()
        .map(|value| match value {
            Value::BulkString(bytes) => Ok(bytes),
            Value::SimpleString(text) => Ok(text.into_bytes()),
            Value::Int(number) => Ok(number.to_string().into_bytes()),
            _ => Err(UNEXPECTED),
        })
        .collect();
    let texts = texts?;
    // The instant and this word alone: the message came too late.
    if texts.len() == 2 && texts[1] == b"L" {
        return Err(StoreError::Late);
    }
    Ok(texts)
}

fn parsed<T: std::str::FromStr>(bytes: &[u8]) -> Result<T, StoreError> {
    let text = std::str::from_utf8(bytes).map_err(|_| UNEXPECTED)?;
    text.parse().map_err(|_| UNEXPECTED)
}

fn micros(bytes: &[u8]) -> Result<Span, StoreError> {
    parsed(bytes).map(Span::from_micros)
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ')
}

fn word<'l, T: std::str::FromStr>(
    words: &mut impl Iterator<Item = &'l [u8]>,
) -> Result<T, StoreError> {
    parsed(words.next().ok_or(UNEXPECTED)?)
}

fn ended_by(number: u64) -> Result<EndedBy, StoreError> {
    match number {
        1 => Ok(EndedBy::Released),
        2 => Ok(EndedBy::Expired),
        3 => Ok(EndedBy::SessionLost),
        4 => Ok(EndedBy::Revoked),
        _ => Err(UNEXPECTED),
    }
}

impl Granting {
    pub(in crate::store) fn read(value: Value) -> Result<Self, StoreError> {
        let texts = texts(value)?;
        let [
            now,
            code,
            rates,
            fence,
            expires_in,
            ended,
            ids,
            told,
            states @ ..,
        ] = &texts[..]
        else {
            return Err(UNEXPECTED);
        };
        let word = match code.as_slice() {
            b"G" => Word::Granted,
            b"R" => Word::Replayed,
            b"C" => Word::Conflict,
            b"E" => Word::Ended(ended_by(parsed(ended)?)?),
            b"I" => Word::Impossible,
            b"D" => Word::Draining,
            b"N" => Word::Refused,
            b"W" => Word::Short,
            b"T" => Word::WouldGrant,
            b"F" => Word::Full,
            b"V" => Word::Void,
            b"U" => Word::UnknownWindow,
            _ => return Err(UNEXPECTED),
        };
        let leases = ids.chunks(LeaseId::LENGTH).map(parsed);
        let told: i64 = parsed(told)?;
        Ok(Self {
            word,
            now: number::instant(parsed(now)?),
            rates: rates.clone(),
            fence: parsed(fence)?,
            expires_in: micros(expires_in)?,
            leases: leases.collect::<Result<_, _>>()?,
            told: u64::try_from(told).ok().map(Span::from_micros),
            states: states
                .iter()
                .map(|line| State::read(line))
                .collect::<Result<_, _>>()?,
        })
    }

    /// What was said about the rate limits of the request; none when they were not asked.
    pub(super) fn rates(&self, length: usize) -> Option<reply::Reply> {
        (!self.rates.is_empty())
            .then(|| reply::Reply::new(self.rates.clone().into(), length))
            .flatten()
    }
}

impl State {
    fn read(line: &[u8]) -> Result<Self, StoreError> {
        if line.is_empty() {
            return Ok(Self::default());
        }
        let mut words = words(line);
        let mut state = Self {
            in_flight: word(&mut words)?,
            mean_hold: word(&mut words)?,
            throughput: word(&mut words)?,
            granted: word(&mut words)?,
            ..Self::default()
        };
        match word::<u8>(&mut words)? {
            1 => state.short = true,
            2 => state.shadow_short = true,
            _ => {}
        }
        state.wait = word(&mut words)?;
        Ok(state)
    }
}

/// One status per lease, and the keys whose permits came back.
pub(in crate::store) fn releases(
    value: Value,
) -> Result<(Vec<ReleaseStatus>, Vec<CounterKey>), StoreError> {
    let texts = texts(value)?;
    let mut keys = Vec::new();
    let lines = texts.get(1..).unwrap_or_default();
    let statuses = lines.iter().map(|line| {
        let mut words = words(line);
        let (status, span) = (word::<u64>(&mut words)?, word(&mut words)?);
        let span = Span::from_micros(span);
        for key in words {
            let key = std::str::from_utf8(key).map_err(|_| UNEXPECTED)?;
            let bits = u128::from_str_radix(key, 16).map_err(|_| UNEXPECTED)?;
            keys.push(CounterKey::from_bits(bits));
        }
        Ok(match status {
            0 => ReleaseStatus::Released { held: span },
            1 => ReleaseStatus::AlreadyReleased,
            2 => ReleaseStatus::Late { by: span },
            3 => ReleaseStatus::SessionLost,
            4 => ReleaseStatus::Revoked,
            11 => ReleaseStatus::NotHolder,
            _ => ReleaseStatus::Unknown,
        })
    });
    let statuses = statuses.collect::<Result<_, StoreError>>()?;
    Ok((statuses, keys))
}

/// One status per lease.
pub(in crate::store) fn renewals(value: Value) -> Result<Vec<RenewStatus>, StoreError> {
    let texts = texts(value)?;
    let lines = texts.get(1..).unwrap_or_default();
    let statuses = lines.iter().map(|line| {
        let mut words = words(line);
        let (status, span) = (word::<u64>(&mut words)?, word(&mut words)?);
        let renewed = |capped| RenewStatus::Renewed {
            expires_in: Span::from_micros(span),
            capped,
        };
        Ok(match status {
            0 => renewed(false),
            1 => renewed(true),
            11 => RenewStatus::NotHolder,
            21..=24 => RenewStatus::Gone(ended_by(status - 20)?),
            _ => RenewStatus::Unknown,
        })
    });
    statuses.collect()
}

/// Places of leases that are no more.
pub(in crate::store) fn gone(value: Value) -> Result<Vec<usize>, StoreError> {
    let texts = texts(value)?;
    texts
        .iter()
        .map(|place| parsed::<usize>(place).map(|place| place.saturating_sub(1)))
        .collect()
}

/// How many.
pub(in crate::store) fn count(value: &Value) -> Result<u64, StoreError> {
    match value {
        Value::Int(count) => u64::try_from(*count).map_err(|_| UNEXPECTED),
        _ => Err(UNEXPECTED),
    }
}

/// One standing per key; none of a key that nobody asked for.
pub(in crate::store) fn standings(value: Value) -> Result<Vec<Option<Standing>>, StoreError> {
    let texts = texts(value)?;
    let lines = texts.get(1..).unwrap_or_default();
    let standing = |line: &Vec<u8>| {
        if line.is_empty() {
            return Ok(None);
        }
        let mut words = words(line);
        Ok(Some(Standing {
            in_flight: word(&mut words)?,
            leases: word(&mut words)?,
            promised: Span::from_micros(word(&mut words)?),
            mean_hold: word(&mut words)?,
            arrived: word(&mut words)?,
            completed: word(&mut words)?,
            time: word(&mut words)?,
            ghosts: word(&mut words)?,
            area: word(&mut words)?,
        }))
    };
    lines.iter().map(standing).collect()
}

/// The leases of each key.
pub(in crate::store) fn leases(value: Value) -> Result<Vec<Vec<LeaseView>>, StoreError> {
    let texts = texts(value)?;
    let mut rest = texts.iter().skip(1);
    let mut keys = Vec::new();
    while let Some(count) = rest.next() {
        let count: usize = parsed(count)?;
        let mut leases = Vec::new();
        for _ in 0..count {
            let [Some(line), Some(holder), Some(instance)] =
                [rest.next(), rest.next(), rest.next()]
            else {
                return Err(UNEXPECTED);
            };
            let mut words = words(line);
            leases.push(LeaseView {
                id: word(&mut words)?,
                permits: word(&mut words)?,
                age: Span::from_micros(word(&mut words)?),
                expires_in: Span::from_micros(word(&mut words)?),
                in_session: word::<u8>(&mut words)? == 1,
                holder: String::from_utf8_lossy(holder).into(),
                instance: String::from_utf8_lossy(instance).into(),
            });
        }
        keys.push(leases);
    }
    Ok(keys)
}
