//! Which fields of a line make a request.

use crate::{
    model::{
        notation,
        request::{Override, Unit},
    },
    trace::{
        error::LineError,
        error::TraceError,
        record::{Own, Record},
        row::{self, Field, Row, Table},
        template::{Template, TemplateError},
        time,
    },
};

/// Names of the field that has the time, when nobody names one; the first that a line has counts.
const TIMES: [&str; 4] = ["time", "start_time", "timestamp", "@timestamp"];

/// What may be said about the fields.
#[derive(Clone, Debug, Default)]
pub struct MappingOptions {
    /// The field with the time; else `time`, `start_time`, `timestamp` or `@timestamp`.
    pub time: Option<String>,
    /// The domain of every request; else the field `domain` says it.
    pub domain: Option<String>,
    /// Descriptors made of fields, see [`Template`]; else the field `descriptors` has them.
    pub descriptors: Vec<String>,
    /// The field with the cost; else `cost`.
    pub cost: Option<String>,
}

/// Makes records of rows.
#[derive(Debug)]
pub struct Mapping {
    names: Vec<String>,
    times: Vec<usize>,
    domain: Domain,
    descriptors: Descriptors,
    cost: usize,
    /// The protocol's cost of a request, in both of its spellings; 0 means 1.
    hits_addend: [usize; 2],
}

#[derive(Debug)]
enum Domain {
    Field(usize),
    Fixed(String),
}

#[derive(Debug)]
enum Descriptors {
    /// A request without descriptors: arrivals only.
    None,
    Field(usize),
    Templates(Vec<Template>),
}

impl Mapping {
    /// Reads the templates.
    pub fn new(options: MappingOptions) -> Result<Self, TemplateError> {
        let mut mapping = Self::of_arrivals();
        if let Some(name) = options.time {
            mapping.times = vec![mapping.field(&name)];
        }
        if let Some(name) = options.cost {
            mapping.cost = mapping.field(&name);
        }
        mapping.domain = match options.domain {
            Some(domain) => Domain::Fixed(domain),
            None => Domain::Field(mapping.field("domain")),
        };
        let mut templates = Vec::new();
        for text in &options.descriptors {
            templates.extend(Template::parse(text, |name| mapping.field(name))?);
        }
        mapping.descriptors = if templates.is_empty() {
            Descriptors::Field(mapping.field("descriptors"))
        } else {
            Descriptors::Templates(templates)
        };
        Ok(mapping)
    }

    /// Reads times and costs only.
    pub fn of_arrivals() -> Self {
        let names = TIMES
            .iter()
            .copied()
            .chain(["cost", "hits_addend", "hitsAddend"]);
        Self {
            names: names.map(str::to_owned).collect(),
            times: (0..TIMES.len()).collect(),
            domain: Domain::Fixed(String::new()),
            descriptors: Descriptors::None,
            cost: TIMES.len(),
            hits_addend: [TIMES.len() + 1, TIMES.len() + 2],
        }
    }

    /// Names of the fields to look for.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn field(&mut self, name: &str) -> usize {
        let known = self.names.iter().position(|known| known == name);
        known.unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        })
    }

    fn name(&self, index: usize) -> &str {
        self.names.get(index).map_or("", String::as_str)
    }

    /// Whether a table has the columns that no line can do without.
    pub fn check_columns(&self, table: &Table) -> Result<(), TraceError> {
        let there = |index: &usize| table.names().iter().any(|name| name == self.name(*index));
        let no_column = |wanted: &[usize]| {
            let wanted: Vec<&str> = wanted.iter().map(|index| self.name(*index)).collect();
            TraceError::NoColumn {
                wanted: wanted.join(" or "),
                found: table.names().join(", "),
            }
        };
        if !self.times.iter().any(there) {
            return Err(no_column(&self.times));
        }
        match &self.descriptors {
            Descriptors::Field(index) if !there(index) => Err(no_column(&[*index])),
            Descriptors::Templates(templates) => {
                let mut fields = templates.iter().flat_map(Template::fields);
                match fields.find(|index| !there(index)) {
                    Some(index) => Err(no_column(&[index])),
                    None => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Makes a record of a row. It has no descriptors when every template lacked a field.
    pub fn fill(&self, row: &Row<'_>, record: &mut Record) -> Result<(), LineError> {
        record.clear();
        let field = |index: usize| row.get(index).and_then(Option::as_ref);
        let text = |index: usize| field(index).and_then(Field::text);
        let found = self
            .times
            .iter()
            .find_map(|index| Some((*index, text(*index)?)));
        let Some((index, found)) = found else {
            return Err(LineError::Missing(
                self.name(*self.times.first().unwrap_or(&0)).to_owned(),
            ));
        };
        let wrong = || LineError::wrong(self.name(index), &found, time::EXPECTED);
        record.time = time::parse(&found).ok_or_else(wrong)?;
        record.cost = self.cost(row)?;
        match &self.domain {
            Domain::Fixed(domain) if domain.is_empty() => {}
            Domain::Fixed(domain) => record.set_domain(domain),
            Domain::Field(index) => {
                if let Some(domain) = text(*index) {
                    record.set_domain(&domain);
                }
            }
        }
        match &self.descriptors {
            Descriptors::None => {}
            Descriptors::Field(index) => {
                let name = self.name(*index);
                let missing = || LineError::Missing(name.to_owned());
                match field(*index).ok_or_else(missing)? {
                    Field::Text(text) => read_notation(name, text, Own::default(), record)?,
                    Field::Json(json) => read_descriptors(name, json, record)?,
                }
                if record.has_no_descriptors() {
                    return Err(missing());
                }
            }
            Descriptors::Templates(templates) => {
                for template in templates {
                    if template.fill(row, |key, value| record.entry(key, value)) {
                        record.end(Own::default());
                    } else {
                        record.undo();
                    }
                }
            }
        }
        Ok(())
    }

    fn cost(&self, row: &Row<'_>) -> Result<Option<u64>, LineError> {
        let number = |index: usize| {
            let field = row.get(index).and_then(Option::as_ref);
            let Some(text) = field.and_then(Field::text) else {
                return Ok(None);
            };
            whole(self.name(index), &text).map(Some)
        };
        if let Some(cost) = number(self.cost)? {
            return Ok(Some(cost));
        }
        for index in self.hits_addend {
            if let Some(cost) = number(index)? {
                return Ok(Some(cost.max(1)));
            }
        }
        Ok(None)
    }
}

fn whole(name: &str, text: &str) -> Result<u64, LineError> {
    let wrong = || LineError::wrong(name, text, "no whole number");
    text.parse().map_err(|_| wrong())
}

fn read_notation(name: &str, text: &str, own: Own, record: &mut Record) -> Result<(), LineError> {
    for piece in notation::entries(text) {
        let piece = piece.map_err(|error| LineError::Descriptors {
            field: name.to_owned(),
            error,
        })?;
        record.entry(&piece.key, &piece.value);
        if piece.last {
            record.end(own);
        }
    }
    Ok(())
}

/// `"user=a,path=/x"`, or a list of such texts and of objects: the protocol's
/// `{"entries": [{"key": "user", "value": "a"}]}`, or plainly `{"user": "a"}`.
fn read_descriptors(name: &str, json: &str, record: &mut Record) -> Result<(), LineError> {
    let wrong = |text: &str| LineError::wrong(name, text, DESCRIPTORS);
    match json.as_bytes().first() {
        Some(b'"') => {
            let text = row::string(json).ok_or_else(|| wrong(json))?;
            read_notation(name, &text, Own::default(), record)
        }
        Some(b'{') => read_object(name, json, record),
        Some(b'[') => {
            let items: Vec<&serde_json::value::RawValue> =
                serde_json::from_str(json).map_err(|_| wrong(json))?;
            for item in items {
                match item.get().as_bytes().first() {
                    Some(b'"' | b'{') => read_descriptors(name, item.get(), record)?,
                    _ => return Err(wrong(item.get())),
                }
            }
            Ok(())
        }
        _ => Err(wrong(json)),
    }
}

const DESCRIPTORS: &str =
    "no list of descriptors; write \"user=a,path=/x\", {\"user\": \"a\"} or {\"entries\": […]}";

fn read_object(name: &str, json: &str, record: &mut Record) -> Result<(), LineError> {
    let wrong = |text: &str| LineError::wrong(name, text, DESCRIPTORS);
    let fields = row::pairs(json).map_err(|_| wrong(json))?;
    let of_protocol = fields
        .iter()
        .any(|(key, value)| key == "entries" && value.starts_with('['));
    let mut own = Own::default();
    for (key, value) in &fields {
        let text = || Field::Json(value).text().ok_or_else(|| wrong(json));
        match &**key {
            "entries" if of_protocol => read_entries(value, record).ok_or_else(|| wrong(json))?,
            "hits_addend" | "hitsAddend" if of_protocol => own.cost = Some(whole(key, &text()?)?),
            "is_negative_hits" | "isNegativeHits" if of_protocol => own.refund = *value == "true",
            "limit" if of_protocol => {
                own.limit = Some(read_limit(value).ok_or_else(|| wrong(json))?);
            }
            _ if of_protocol => return Err(wrong(json)),
            // An empty value is a value here.
            key => match row::string(value) {
                Some(value) => record.entry(key, &value),
                None => record.entry(key, &text()?),
            },
        }
    }
    record.end(own);
    Ok(())
}

fn read_entries(json: &str, record: &mut Record) -> Option<()> {
    let entries: Vec<&serde_json::value::RawValue> = serde_json::from_str(json).ok()?;
    for entry in entries {
        let fields = row::pairs(entry.get()).ok()?;
        let field = |name: &str| {
            let (_, value) = fields.iter().find(|(key, _)| key == name)?;
            row::string(value)
        };
        record.entry(&field("key")?, &field("value").unwrap_or_default());
    }
    Some(())
}

fn read_limit(json: &str) -> Option<Override> {
    let fields = row::pairs(json).ok()?;
    let field = |names: [&str; 2]| {
        let (_, value) = fields.iter().find(|(key, _)| names.contains(&&**key))?;
        Field::Json(value).text()
    };
    let multiplier = field(["unit_multiplier", "unitMultiplier"]);
    Some(Override {
        requests_per_unit: field(["requests_per_unit", "requestsPerUnit"])?
            .parse()
            .ok()?,
        unit: Unit::parse(&field(["unit", "unit"])?)?,
        unit_multiplier: multiplier.map_or(Some(1), |text| text.parse().ok())?,
    })
}

#[cfg(test)]
mod tests;
