//! A rule file as it is written, typed but not yet understood.

//!
//! The fields of the reference service are read the way its YAML library fills its structures: one
//! after the other, so that of a field that is given twice the later one counts, and a mapping
//! that is given twice is laid over the first.

use serde_json::Map;

use crate::{
    config::{
        answer, concurrency,
        finding::Position,
        limits::{RawLimits, read_replaces},
        matcher, metadata,
        reader::{Located, Reader},
        yaml::{Content, Node},
    },
    rules::{
        OnStoreFailure, Stacking,
        answer::{Answer, Scope},
        concurrency::ConcurrencyRule,
        tree::RequestLimit,
        value::Mask,
    },
};

const STACKINGS: [(&str, Stacking); 2] = [
    ("independent", Stacking::Independent),
    ("all_or_nothing", Stacking::AllOrNothing),
];

const STORE_FAILURES: [(&str, OnStoreFailure); 3] = [
    ("local", OnStoreFailure::Local),
    ("allow", OnStoreFailure::Allow),
    ("deny", OnStoreFailure::Deny),
];

const UNKNOWN_KEYS: [(&str, bool); 2] = [("pass", false), ("refuse", true)];

const SCOPES: [(&str, Scope); 3] = [
    ("user", Scope::User),
    ("global", Scope::Global),
    ("shared", Scope::Shared),
];

const REQUEST_LIMITS: [(&str, RequestLimit); 2] = [
    ("window", RequestLimit::Window),
    ("numbers", RequestLimit::Numbers),
];

/// A file.
#[derive(Debug, Default)]
pub(super) struct RawFile {
    pub(super) domain: Located<Box<str>>,
    pub(super) descriptors: Vec<RawDescriptor>,
    pub(super) stacking: Option<Located<Stacking>>,
    pub(super) on_store_failure: Option<Located<OnStoreFailure>>,
    pub(super) spread: Option<Located<bool>>,
    pub(super) refuse_unknown: Option<Located<bool>>,
    pub(super) answer: Option<Located<Answer>>,
}

/// An element of `descriptors:`.
#[derive(Debug, Default)]
pub(super) struct RawDescriptor {
    pub(super) at: Position,
    pub(super) key: Located<Box<str>>,
    pub(super) value: Located<Box<str>>,
    pub(super) rate_limit: Option<RawRateLimit>,
    pub(super) descriptors: Vec<RawDescriptor>,
    pub(super) shadow_mode: Located<bool>,
    pub(super) quota_mode: Located<bool>,
    pub(super) detailed_metric: Located<bool>,
    pub(super) value_to_metric: Located<bool>,
    pub(super) share_threshold: Located<bool>,
    pub(super) metadata: Option<Map<String, serde_json::Value>>,
    pub(super) limits: Option<RawLimits>,
    pub(super) mask: Option<Located<Mask>>,
    pub(super) concurrency: Option<ConcurrencyRule>,
    pub(super) scope: Option<Located<Scope>>,
    pub(super) advertise: Option<Located<bool>>,
    pub(super) request_limit: Option<Located<RequestLimit>>,
}

/// `rate_limit:`
#[derive(Debug, Default)]
pub(super) struct RawRateLimit {
    pub(super) at: Position,
    pub(super) unit: Located<Box<str>>,
    pub(super) requests_per_unit: Located<u32>,
    pub(super) unit_multiplier: Option<Located<u64>>,
    pub(super) unlimited: Located<bool>,
    pub(super) name: Located<Box<str>>,
    pub(super) replaces: Vec<Located<Box<str>>>,
}

impl RawFile {
    pub(super) fn read(reader: &mut Reader, root: &Node) -> Self {
        let mut file = Self::default();
        reader.fields(root, &mut |reader, name, value| match name {
            "domain" => reader.text(value, &mut file.domain),
            "descriptors" => file.descriptors = RawDescriptor::read_all(reader, value),
            "stacking" => file.stacking = reader.choice(value, &STACKINGS),
            "on_store_failure" => file.on_store_failure = reader.choice(value, &STORE_FAILURES),
            "spread" => file.spread = reader.switch(value),
            "unknown_key" => file.refuse_unknown = reader.choice(value, &UNKNOWN_KEYS),
            "answer" => {
                file.answer = Some(Located {
                    value: answer::read(reader, value),
                    at: value.at,
                });
            }
            _ => {}
        });
        file
    }

    /// The domain alone, of a file that cannot be read as a whole: a reload needs to know whose
    /// rules stay.
    pub(super) fn of_broken(root: &Node) -> Self {
        let mut file = Self::default();
        let Content::Map(entries) = &root.content else {
            return file;
        };
        for (key, value) in entries {
            if let (Content::Scalar(key), Content::Scalar(word)) = (&key.content, &value.content)
                && &*key.text == "domain"
            {
                file.domain = Located {
                    value: word.text.clone(),
                    at: value.at,
                };
            }
        }
        file
    }
}

impl RawDescriptor {
    fn read_all(reader: &mut Reader, node: &Node) -> Vec<Self> {
        let items = reader.list(node).iter().enumerate();
        items
            .map(|(index, item)| reader.item(index, |reader| Self::read(reader, item)))
            .collect()
    }

    fn read(reader: &mut Reader, node: &Node) -> Self {
        let mut descriptor = Self {
            at: node.at,
            ..Self::default()
        };
        reader.fields(node, &mut |reader, name, value| {
            let this = &mut descriptor;
            match name {
                "key" => reader.text(value, &mut this.key),
                "value" => reader.text(value, &mut this.value),
                "rate_limit" => RawRateLimit::read(reader, value, &mut this.rate_limit),
                "descriptors" => this.descriptors = Self::read_all(reader, value),
                "shadow_mode" => reader.boolean(value, &mut this.shadow_mode),
                "quota_mode" => reader.boolean(value, &mut this.quota_mode),
                "detailed_metric" => reader.boolean(value, &mut this.detailed_metric),
                "value_to_metric" => reader.boolean(value, &mut this.value_to_metric),
                "share_threshold" => reader.boolean(value, &mut this.share_threshold),
                "metadata" => metadata::read(reader, value, &mut this.metadata),
                "limits" => this.limits = Some(RawLimits::read(reader, value)),
                "mask" => this.mask = Some(matcher::mask(reader, value)),
                "concurrency" => this.concurrency = concurrency::read(reader, value),
                "scope" => this.scope = reader.choice(value, &SCOPES),
                "advertise" => this.advertise = reader.switch(value),
                "request_limit" => this.request_limit = reader.choice(value, &REQUEST_LIMITS),
                _ => {}
            }
        });
        descriptor
    }
}

impl RawRateLimit {
    fn read(reader: &mut Reader, node: &Node, slot: &mut Option<Self>) {
        if matches!(&node.target().content, Content::Scalar(word) if word.unset) {
            *slot = None;
            return;
        }
        if matches!(&node.target().content, Content::Scalar(_)) {
            // A null that is not written as one the library knows: an empty mapping.
            *slot = None;
        }
        let limit = slot.get_or_insert_with(|| Self {
            at: node.at,
            ..Self::default()
        });
        reader.fields(node, &mut |reader, name, value| match name {
            "unit" => reader.text(value, &mut limit.unit),
            "requests_per_unit" => reader.unsigned32(value, &mut limit.requests_per_unit),
            "unit_multiplier" => limit.unit_multiplier = reader.count(value),
            "unlimited" => reader.boolean(value, &mut limit.unlimited),
            "name" => reader.text(value, &mut limit.name),
            "replaces" => limit.replaces = read_replaces(reader, value),
            _ => {}
        });
    }
}
