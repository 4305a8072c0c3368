//! `concurrency:` of a rule: a limit on work in flight.

use std::{rc::Rc, sync::Arc};

use crate::{
    config::{
        entry::key_and_value,
        law::{self, RawLaw},
        reader::{Located, Reader},
        yaml::{Content, Node},
    },
    model::time::Span,
    rules::concurrency::{ConcurrencyRule, Entries, OnRestart, OnShrink, RefundOn, Shedding},
};

/// The fields besides those of the laws.
const NAMES: [&str; 34] = [
    "name",
    "lease_ttl",
    "max_lifetime",
    "max_wait",
    "max_waiters",
    "queue_target",
    "lifo",
    "heavy_patience",
    "under_share_wait",
    "criticality",
    "on_restart",
    "on_shrink",
    "refund_on",
    "learn_weights",
    "prior_hold",
    "ewma_alpha",
    "exposure",
    "exposure_tau",
    "hint_booking",
    "hint_jitter",
    "hint_when_drained",
    "early_release_mark",
    "ghost_ttl",
    "connection_gone_after",
    "connection_grace",
    "shadow",
    "window",
    "lease_entry",
    "release_entry",
    "status_entry",
    "flags_entry",
    "duration_entry",
    "criticality_entry",
    "tenant_entry",
];

/// Reads the block. The path of the rule and whether callers share it are not known here.
pub(crate) fn read(reader: &mut Reader, node: &Node) -> Option<ConcurrencyRule> {
    let mut rule = ConcurrencyRule::fixed("", 0);
    let mut law = RawLaw::new(node.at);
    let mut lives = [node.at; 2];
    let mut windowed = false;
    let names = [&NAMES[..], &law::NAMES[..]].concat();
    reader.own_fields(node, &names, &mut |reader, name, value| {
        match name {
            "lease_ttl" => lives[0] = value.at,
            "max_lifetime" => lives[1] = value.at,
            "window" => windowed = true,
            _ => {}
        }
        if law::NAMES.contains(&name) {
            law.field(reader, name, value);
        } else if name.ends_with("_entry") {
            entry(reader, &mut rule.entries, name, value);
        } else {
            field(reader, &mut rule, name, value);
        }
    });
    if rule.lease_ttl.is_zero() {
        reader.error(
            lives[0],
            "a lease of no time holds nothing",
            "write a longer `lease_ttl`",
        );
    } else if rule.max_lifetime < rule.lease_ttl {
        let at = lives[0].max(lives[1]);
        reader.error(
            at,
            "`max_lifetime` is shorter than `lease_ttl`",
            "make it longer",
        );
    }
    rule.limit = law.compile(reader)?;
    if !windowed {
        rule.window = Some(rule.limit.default_window());
    }
    Some(rule)
}

/// A field that is not about the size of the limit.
fn field(reader: &mut Reader, rule: &mut ConcurrencyRule, name: &str, value: &Node) {
    let span = |reader: &mut Reader, slot: &mut Span| {
        if let Some(span) = reader.span(value) {
            *slot = span;
        }
    };
    let on = |reader: &mut Reader, slot: &mut bool| {
        if let Some(on) = reader.switch(value) {
            *slot = on.value;
        }
    };
    let number = |reader: &mut Reader, slot: &mut f64, least: f64, most: f64| {
        if let Some(number) = reader.number(value, least, most) {
            *slot = number;
        }
    };
    match name {
        "name" => rule.name = reader.words(value).map(|name| Arc::from(name.value)),
        "lease_ttl" => span(reader, &mut rule.lease_ttl),
        "max_lifetime" => span(reader, &mut rule.max_lifetime),
        "max_wait" => span(reader, &mut rule.waiting.max_wait),
        "max_waiters" => {
            if let Some(count) = reader.count(value) {
                rule.waiting.max_waiters = count.value;
            }
        }
        "queue_target" => rule.waiting.queue_target = reader.span(value),
        "lifo" => on(reader, &mut rule.waiting.newest_first),
        "heavy_patience" => rule.waiting.heavy_patience = reader.span(value),
        "under_share_wait" => rule.waiting.under_share_wait = reader.span(value),
        "criticality" => {
            if let Some(shedding) = shedding(reader, value) {
                rule.shedding = shedding;
            }
        }
        "on_restart" => {
            const CHOICES: [(&str, OnRestart); 4] = [
                ("forget", OnRestart::Forget),
                ("quarantine", OnRestart::Quarantine),
                ("reattach", OnRestart::Reattach),
                ("snapshot", OnRestart::Snapshot),
            ];
            rule.on_restart = reader
                .choice(value, &CHOICES)
                .map_or(rule.on_restart, |choice| choice.value);
        }
        "on_shrink" => {
            const CHOICES: [(&str, OnShrink); 2] = [
                ("keep", OnShrink::Keep),
                ("revoke_newest", OnShrink::RevokeNewest),
            ];
            rule.on_shrink = reader
                .choice(value, &CHOICES)
                .map_or(rule.on_shrink, |choice| choice.value);
        }
        "refund_on" => rule.refund_on = refund_on(reader, value),
        "learn_weights" => rule.most_weight = most_weight(reader, value),
        "prior_hold" => span(reader, &mut rule.estimates.prior_hold),
        "ewma_alpha" => number(reader, &mut rule.estimates.alpha, 0.001, 1.0),
        "exposure" => on(reader, &mut rule.estimates.exposure),
        "exposure_tau" => span(reader, &mut rule.estimates.memory),
        "hint_booking" => on(reader, &mut rule.hints.booking),
        "hint_jitter" => number(reader, &mut rule.hints.jitter, 0.0, 1.0),
        "hint_when_drained" => span(reader, &mut rule.hints.when_drained),
        "early_release_mark" => span(reader, &mut rule.marks.early_release),
        "ghost_ttl" => span(reader, &mut rule.marks.ghost),
        "connection_gone_after" => {
            let off = matches!(&value.target().content,
                Content::Scalar(word) if &*word.text == "off");
            rule.gone.after = if off { None } else { reader.span(value) };
        }
        "connection_grace" => span(reader, &mut rule.gone.grace),
        "shadow" => on(reader, &mut rule.shadow),
        "window" => rule.window = reader.span(value).filter(|window| !window.is_zero()),
        _ => {}
    }
}

/// `learn_weights: {max: 8}`
fn most_weight(reader: &mut Reader, node: &Node) -> Option<u64> {
    const ADVICE: &str = "write the most permits that a request may be taken to need, such as \
                          {max: 8}, from 2 to 1000000";
    let mut max = None;
    reader.own_fields(node, &["max"], &mut |reader, _, value| {
        max = reader.count(value).map(|count| count.value);
    });
    let fits = max.filter(|max| (2..=1_000_000).contains(max));
    if fits.is_none() {
        reader.error(
            node.at,
            "`learn_weights` has no `max` that means something",
            ADVICE,
        );
    }
    fits
}

/// `refund_on: [dropped, expired]`, or one of them.
fn refund_on(reader: &mut Reader, node: &Node) -> RefundOn {
    const CHOICES: [(&str, RefundOn); 3] = [
        (
            "none",
            RefundOn {
                dropped: false,
                expired: false,
            },
        ),
        (
            "dropped",
            RefundOn {
                dropped: true,
                expired: false,
            },
        ),
        (
            "expired",
            RefundOn {
                dropped: false,
                expired: true,
            },
        ),
    ];
    let mut all = RefundOn::default();
    let mut add = |choice: Option<Located<RefundOn>>| {
        all = choice.map_or(all, |choice| all.or(choice.value));
    };
    if let Content::List(items) = &node.target().content {
        for (index, item) in items.iter().enumerate() {
            add(reader.item(index, |reader| reader.choice(item, &CHOICES)));
        }
    } else {
        add(reader.choice(node, &CHOICES));
    }
    all
}

/// Keys of descriptor entries that tell something about a request.
fn entry(reader: &mut Reader, entries: &mut Entries, name: &str, value: &Node) {
    if name == "lease_entry" && matches!(value.target().content, Content::List(_)) {
        let items = reader.list(value).iter().enumerate();
        let read =
            |(index, item): (usize, &Rc<Node>)| reader.item(index, |reader| reader.words(item));
        entries.lease = items.filter_map(read).map(|key| key.value).collect();
        return;
    }
    if name == "release_entry" {
        if let Some(release) = key_and_value(reader, value) {
            entries.release = release;
        }
        return;
    }
    let Some(key) = reader.words(value) else {
        return;
    };
    match name {
        "lease_entry" => entries.lease = [key.value].into(),
        "status_entry" => entries.status = key.value,
        "flags_entry" => entries.flags = key.value,
        "duration_entry" => entries.duration = key.value,
        "criticality_entry" => entries.criticality = key.value,
        _ => entries.tenant = key.value,
    }
}

/// `criticality: [1.0, 1.0, 0.9, 0.8]`, fractions of the limit from the most critical class to the
/// least, or `criticality: {priority_wait: 100ms}`.
fn shedding(reader: &mut Reader, node: &Node) -> Option<Shedding> {
    if let Content::List(items) = &node.target().content {
        let read = |(index, item): (usize, &Rc<Node>)| {
            reader.item(index, |reader| reader.number(item, 0.0, 1.0))
        };
        let fractions: Option<Vec<f64>> = items.iter().enumerate().map(read).collect();
        let Ok(fractions) = <[f64; 4]>::try_from(fractions?) else {
            reader.error(node.at, "there are four classes", CRITICALITY);
            return None;
        };
        if fractions.windows(2).any(|pair| pair[0] < pair[1]) {
            reader.error(
                node.at,
                "a less critical class has more than a more critical one",
                CRITICALITY,
            );
            return None;
        }
        return Some(Shedding::Thresholds(fractions));
    }
    let mut wait = None;
    reader.own_fields(node, &["priority_wait"], &mut |reader, _, value| {
        wait = reader.span(value);
    });
    wait.map(Shedding::PriorityWait)
}

const CRITICALITY: &str =
    "write four fractions of the limit that do not grow, such as [1.0, 1.0, 0.9, 0.8]";
