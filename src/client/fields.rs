//! Reads `RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers-10).
//!
//! A client must do without these fields, so nothing here is an error. A field that is no structured
//! field (RFC 9651) is ignored as a whole; of one that is, a member that makes no sense is. Unknown
//! parameters are ignored, the last of two parameters of one name counts, and padding bits of a
//! partition key may be anything: the draft's own examples need that.

use sfv::{BareItem, Item, List, ListEntry, Parameters, Parser};

use crate::model::time::Span;

/// A member of `RateLimit-Policy`: what is promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Ties it to members of `RateLimit`.
    pub name: String,
    /// `q`, in `unit`; 0 is a closed limit.
    pub quota: u64,
    /// `qu`: `requests` if the field says nothing.
    pub unit: String,
    /// `w`, whole seconds; none for limits that time does not renew.
    pub window: Option<Span>,
    /// `pk`
    pub partition: Option<Vec<u8>>,
}

/// A member of `RateLimit`: how it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Name of its [`Policy`].
    pub name: String,
    /// `r`, in the policy's unit.
    pub remaining: u64,
    /// `t`, whole seconds until there is more than that; none when nobody knows or time does not
    /// help.
    pub until_more: Option<Span>,
    /// `pk`
    pub partition: Option<Vec<u8>>,
}

/// The policies of a message: all its `RateLimit-Policy` lines, in order.
pub fn policies<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<Policy> {
    items(lines).iter().flat_map(policy).collect()
}

/// The limits of a message: all its `RateLimit` lines, in order.
pub fn limits<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<Limit> {
    items(lines).iter().flat_map(limit).collect()
}

/// Several lines of one field are one list. Inner lists mean nothing here.
fn items<'l>(lines: impl IntoIterator<Item = &'l str>) -> Vec<Item> {
    let lines: Vec<&str> = lines.into_iter().collect();
    let list: List = Parser::new(&lines.join(", ")).parse().unwrap_or_default();
    let items = list.into_iter().filter_map(|entry| match entry {
        ListEntry::Item(item) => Some(item),
        ListEntry::InnerList(_) => None,
    });
    items.collect()
}

/// A parameter or a name that makes no sense: its member is ignored.
struct Senseless;

fn policy(item: &Item) -> Result<Policy, Senseless> {
    let window = count(&item.params, "w")?;
    if window == Some(0) {
        return Err(Senseless);
    }
    Ok(Policy {
        name: name(item)?,
        quota: count(&item.params, "q")?.ok_or(Senseless)?,
        unit: unit(&item.params)?,
        window: window.map(Span::from_secs),
        partition: partition(&item.params)?,
    })
}

fn limit(item: &Item) -> Result<Limit, Senseless> {
    Ok(Limit {
        name: name(item)?,
        remaining: count(&item.params, "r")?.ok_or(Senseless)?,
        until_more: count(&item.params, "t")?.map(Span::from_secs),
        partition: partition(&item.params)?,
    })
}

fn name(item: &Item) -> Result<String, Senseless> {
    match &item.bare_item {
        BareItem::String(name) => Ok(name.as_str().to_owned()),
        _ => Err(Senseless),
    }
}

/// A non-negative integer, if it is there.
fn count(params: &Parameters, key: &str) -> Result<Option<u64>, Senseless> {
    match params.get(key) {
        None => Ok(None),
        Some(BareItem::Integer(value)) => match u64::try_from(i64::from(*value)) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(Senseless),
        },
        Some(_) => Err(Senseless),
    }
}

fn unit(params: &Parameters) -> Result<String, Senseless> {
    match params.get("qu") {
        None => Ok("requests".to_owned()),
        Some(BareItem::String(unit)) => Ok(unit.as_str().to_owned()),
        Some(_) => Err(Senseless),
    }
}

fn partition(params: &Parameters) -> Result<Option<Vec<u8>>, Senseless> {
    match params.get("pk") {
        None => Ok(None),
        Some(BareItem::ByteSequence(bytes)) => Ok(Some(bytes.clone())),
        Some(_) => Err(Senseless),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// What was read, in the words of the vectors.
    fn parsed(field: &str, input: &str) -> Vec<Value> {
        let mut members = Vec::new();
        let mut add = |name: &str, pairs: [(&str, Option<Value>); 3], pk: &Option<Vec<u8>>| {
            let mut member = Map::from_iter([("name".to_owned(), json!(name))]);
            for (key, value) in pairs {
                member.extend(value.map(|value| (key.to_owned(), value)));
            }
            let hex = |bytes: &Vec<u8>| {
                let number = bytes.iter().fold(0, |n, b| n << 8 | u128::from(*b));
                format!("{number:0width$x}", width = bytes.len() * 2)
            };
            let hex = pk.as_ref().map(hex);
            member.extend(hex.map(|hex| ("pk_hex".to_owned(), json!(hex))));
            members.push(Value::Object(member));
        };
        let seconds = |span: Option<Span>| span.map(|span| json!(span.as_secs_up()));
        if field == "RateLimit-Policy" {
            for policy in policies([input]) {
                let unit = (policy.unit != "requests").then(|| json!(policy.unit));
                let (q, w) = (Some(json!(policy.quota)), seconds(policy.window));
                add(
                    &policy.name,
                    [("q", q), ("qu", unit), ("w", w)],
                    &policy.partition,
                );
            }
        } else {
            for limit in limits([input]) {
                let (r, t) = (Some(json!(limit.remaining)), seconds(limit.until_more));
                add(
                    &limit.name,
                    [("r", r), ("t", t), ("", None)],
                    &limit.partition,
                );
            }
        }
        members
    }

    #[test]
    fn every_vector_reads_as_it_should() {
        let text = std::fs::read_to_string("tests/cases/peer-vectors.json").unwrap();
        let vectors: Value = serde_json::from_str(&text).unwrap();
        let vectors = vectors["structured_fields"].as_array().unwrap();
        for vector in vectors {
            let (field, input) = (&vector["field"], &vector["input"]);
            let read = parsed(field.as_str().unwrap(), input.as_str().unwrap());
            let want = vector["parsed"].as_array().cloned().unwrap_or_default();
            assert_eq!(want.is_empty(), vector["must_ignore"].is_string());
            assert_eq!(read, want, "{vector}");
        }
        assert_eq!(vectors.len(), 26);
    }

    #[test]
    fn what_has_no_meaning_is_ignored_and_the_rest_kept() {
        assert_eq!(limits([r#""x";r=1.5, "y";r=2"#]).len(), 1);
        assert_eq!(limits([r#""x";r=1;pk="text", "y";r=2"#]).len(), 1);
        assert_eq!(limits([r#""x";r=1;t=soon, "y";r=2"#]).len(), 1);
        assert_eq!(limits([r#"("x" "z");r=1, "y";r=2"#]).len(), 1);
        assert_eq!(policies([r#""x";w=5, "y";q=2"#]).len(), 1);
        assert_eq!(policies([r#""x";q=5;qu=bytes, "y";q=2"#]).len(), 1);
    }

    #[test]
    fn unknown_parameters_are_comments() {
        let read = limits([r#""x";r=1;acme-note="hi";@t=3"#]);
        assert!(read.is_empty(), "`@` begins no key: the field is malformed");
        let read = limits([r#""x";r=1;acme-note="hi";later"#]);
        assert_eq!(read[0].remaining, 1);
    }

    #[test]
    fn lines_are_one_list_and_nothing_is_an_empty_one() {
        let read = limits([r#""a";r=1"#, r#""b";r=2;t=3"#]);
        assert_eq!(read[1].until_more, Some(Span::from_secs(3)));
        assert_eq!(limits([]), []);
        assert_eq!(limits([""]), []);
        assert_eq!(policies(["  "]), []);
    }

    #[test]
    fn names_are_unescaped() {
        assert_eq!(limits([r#""a \"b\" \\ c";r=1"#])[0].name, r#"a "b" \ c"#);
    }
}
