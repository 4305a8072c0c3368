//! What a descriptor asks of a limit on work in flight, under `ShouldRateLimit`.

use crate::{
    model::{
        key::{CounterKey, KeyHasher},
        lease::{Cause, Criticality, Outcome},
        request::{Descriptor, Entry},
        time::Span,
    },
    rules::{concurrency::Entries, lookup::Match},
    store::lease::ItemState,
};

/// Tells the key of permits from the keys of a rule's rate limits.
const DISCRIMINATOR: u64 = u64::MAX;

/// What a descriptor asks of the concurrency limit of its rule.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Permits {
    /// The counted instance of the limit.
    pub key: CounterKey,
    /// The caller's name of the lease, hashed; none for anonymous ones.
    pub name: Option<CounterKey>,
    /// What is asked.
    pub action: Action,
    /// Permits that there are; known after the decision.
    pub limit: u64,
    /// Why they were refused, and whether by others' fault; known after the decision.
    pub refused: Option<Refused>,
    /// Who is refused first.
    pub criticality: Criticality,
    /// Whose fair share it counts against.
    pub tenant: Option<CounterKey>,
}

/// Why permits were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The caller has too much at once, or more than its share.
    Own,
    /// A resource that callers share has no more.
    Shared,
    /// Somebody else's need goes before, or the resource is overloaded.
    Shed,
}

impl Refused {
    /// From what the book says of an item.
    pub(super) fn of(state: &ItemState) -> Option<Self> {
        let cause = state.cause?;
        Some(match cause {
            Cause::Concurrency | Cause::FairShare if state.shared => Self::Shared,
            Cause::Concurrency | Cause::FairShare => Self::Own,
            _ => Self::Shed,
        })
    }
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Action {
    /// This many permits.
    Take(u64),
    /// Is there one left?
    Look,
    /// The permits come back.
    Release {
        /// What became of the work.
        outcome: Outcome,
        /// How long it took.
        service_time: Option<Span>,
    },
}

/// The key of the concurrency limit that these entries ended at: their values without those that
/// only tell something.
pub fn key_of(matched: &Match<'_>, entries: &[Entry<'_>], hasher: &KeyHasher) -> CounterKey {
    let mut hasher = *hasher;
    let told = |key: &str| {
        matched
            .rule
            .concurrency
            .as_ref()
            .is_some_and(|rule| rule.entries.only_tells(key))
    };
    for (step, entry) in matched.steps.iter().zip(entries) {
        if !told(entry.key) {
            step.hash(*entry, &mut hasher);
        }
    }
    hasher.number(DISCRIMINATOR);
    hasher.finish()
}

/// A name or a tenant, hashed: valid within its domain.
pub fn named(text: &str, hasher: &KeyHasher) -> CounterKey {
    let mut hasher = *hasher;
    hasher.text(text);
    hasher.finish()
}

impl Permits {
    /// None when the rule has no concurrency limit. `cost` is what the descriptor asks for, `hasher`
    /// has the domain in it.
    pub fn of(
        matched: &Match<'_>,
        cost: u64,
        descriptor: &Descriptor,
        entries: &[Entry<'_>],
        hasher: &KeyHasher,
    ) -> Option<Self> {
        let known = &matched.rule.concurrency.as_ref()?.entries;
        let value_of = |key: &str| {
            entries
                .iter()
                .find(|entry| entry.key == key)
                .map(|e| e.value)
        };
        let name = known
            .lease
            .iter()
            .find_map(|key| value_of(key))
            .filter(|v| !v.is_empty());
        let marked = value_of(&known.release.0).is_some_and(|value| *value == *known.release.1);
        let action = if descriptor.is_negative_hits || marked {
            let (outcome, service_time) = end_of_work(known, value_of);
            Action::Release {
                outcome,
                service_time,
            }
        } else if cost == 0 {
            Action::Look
        } else {
            Action::Take(cost)
        };
        Some(Self {
            limit: 0,
            refused: None,
            key: key_of(matched, entries, hasher),
            name: name.map(|name| named(name, hasher)),
            action,
            criticality: value_of(&known.criticality).map_or_else(Criticality::default, class),
            tenant: value_of(&known.tenant).map(|tenant| named(tenant, hasher)),
        })
    }

    /// Whether the permits come back.
    pub const fn is_release(&self) -> bool {
        matches!(self.action, Action::Release { .. })
    }
}

fn class(name: &str) -> Criticality {
    let known = [
        ("critical_plus", Criticality::CriticalPlus),
        ("critical", Criticality::Critical),
        ("sheddable_plus", Criticality::SheddablePlus),
        ("sheddable", Criticality::Sheddable),
    ];
    let found = known
        .iter()
        .find(|(text, _)| text.eq_ignore_ascii_case(name));
    found.map_or_else(Criticality::default, |(_, class)| *class)
}

/// What the entries of a release tell. A response that says "too much" (429, 503, 504), or none
/// for want of a working upstream, is a drop; a client that went away says nothing.
fn end_of_work<'e>(
    known: &Entries,
    value_of: impl Fn(&str) -> Option<&'e str>,
) -> (Outcome, Option<Span>) {
    let millis = value_of(&known.duration).and_then(|text| text.parse().ok());
    let service_time = millis.map(Span::from_millis);
    let status = value_of(&known.status).and_then(|text| text.parse::<u16>().ok());
    let flags = value_of(&known.flags).unwrap_or_default();
    // DC: the client went away. RL: we refused it ourselves.
    let says_nothing = flags
        .split(',')
        .any(|flag| matches!(flag, "DC" | "RL" | "RLSE"));
    let outcome = match status {
        _ if says_nothing => Outcome::Ignored,
        Some(429 | 503 | 504) => Outcome::Dropped,
        Some(100..) => Outcome::Success,
        Some(_) | None => Outcome::Ignored,
    };
    (outcome, service_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_work_is_read_from_entries() {
        let known = Entries::default();
        let end = |entries: &[(&str, &'static str)]| {
            let entries = entries.to_vec();
            end_of_work(&known, |key| {
                entries
                    .iter()
                    .find(|(known, _)| *known == key)
                    .map(|(_, value)| *value)
            })
        };
        let took = Some(Span::from_millis(302));
        let ok = [("status", "200"), ("flags", "-"), ("duration_ms", "302")];
        assert_eq!(end(&ok), (Outcome::Success, took));
        assert_eq!(
            end(&[("status", "503"), ("flags", "UO")]),
            (Outcome::Dropped, None)
        );
        assert_eq!(
            end(&[("status", "0"), ("flags", "DC")]),
            (Outcome::Ignored, None)
        );
        assert_eq!(
            end(&[("status", "429"), ("flags", "RL")]),
            (Outcome::Ignored, None)
        );
        assert_eq!(end(&[("duration_ms", "-1")]), (Outcome::Ignored, None));
        assert_eq!(end(&[]), (Outcome::Ignored, None));
    }
}
