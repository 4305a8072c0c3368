//! The fields of one line that somebody asked for.

use std::{borrow::Cow, fmt};

use csv_core::{ReadRecordResult, Reader};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

use crate::trace::error::LineError;

/// One field per wanted name, in their order; none where the line has no such field.
pub type Row<'a> = SmallVec<[Option<Field<'a>>; 8]>;

/// What a field holds.
#[derive(Clone, Debug)]
pub enum Field<'a> {
    /// A field of a table.
    Text(&'a str),
    /// JSON, not yet read.
    Json(&'a str),
}

impl<'a> Field<'a> {
    /// The field as a text: a string, a number or a boolean. Nothing for `null`, for an empty text,
    /// and for `-`, which Envoy's access logs write for what is not there; nothing for lists and
    /// objects.
    pub fn text(&self) -> Option<Cow<'a, str>> {
        let text = match self {
            Self::Text(text) => Cow::Borrowed(*text),
            Self::Json(json) => match json.as_bytes().first()? {
                b'"' => string(json)?,
                b'{' | b'[' | b'n' => return None,
                _ => Cow::Borrowed(*json),
            },
        };
        (!text.is_empty() && text != "-").then_some(text)
    }
}

/// The text of a JSON string, borrowed when nothing in it is escaped.
pub fn string(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if inner.contains('\\') {
        serde_json::from_str(json).ok().map(Cow::Owned)
    } else {
        Some(Cow::Borrowed(inner))
    }
}

/// How lines become rows.
#[derive(Debug)]
pub enum Rows {
    /// Objects of JSON.
    Json,
    /// Rows of a table.
    Csv(Box<Table>),
}

impl Rows {
    /// Reads the wanted fields of one line.
    pub fn read<'a>(&'a mut self, line: &'a [u8], wanted: &[String]) -> Result<Row<'a>, LineError> {
        match self {
            Self::Json => json(line, wanted),
            Self::Csv(table) => table.read(line),
        }
    }
}

fn json<'a>(line: &'a [u8], wanted: &[String]) -> Result<Row<'a>, LineError> {
    let line = std::str::from_utf8(line).map_err(|_| LineError::NotUtf8)?;
    let mut reader = serde_json::Deserializer::from_str(line);
    let row = Object { wanted }.deserialize(&mut reader);
    row.and_then(|row| reader.end().map(|()| row))
        .map_err(|error| LineError::NotJson(error.to_string()))
}

/// Reads an object; of a field given twice the later one counts.
struct Object<'w> {
    wanted: &'w [String],
}

impl<'de> DeserializeSeed<'de> for Object<'_> {
    type Value = Row<'de>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Row<'de>, D::Error> {
        reader.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Row<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Row<'de>, A::Error> {
        let mut row: Row<'de> = std::iter::repeat_n(None, self.wanted.len()).collect();
        while let Some(index) = map.next_key_seed(Name {
            wanted: self.wanted,
        })? {
            match index.and_then(|index| row.get_mut(index)) {
                Some(field) => {
                    let value: &'de RawValue = map.next_value()?;
                    *field = Some(Field::Json(value.get()));
                }
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(row)
    }
}

/// Reads a field's name as the index of a wanted one.
struct Name<'w> {
    wanted: &'w [String],
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Option<usize>, D::Error> {
        reader.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = Option<usize>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<Option<usize>, E> {
        Ok(self.wanted.iter().position(|wanted| wanted == name))
    }
}

/// Entries of an object in the order they are written, values not yet read.
pub type Pairs<'a> = SmallVec<[(Cow<'a, str>, &'a str); 4]>;

/// Reads every field of an object of JSON.
pub fn pairs(json: &str) -> Result<Pairs<'_>, serde_json::Error> {
    struct All;
    impl<'de> Visitor<'de> for All {
        type Value = Pairs<'de>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
            let mut pairs = Pairs::new();
            while let Some((key, value)) = map.next_entry::<&'de RawValue, &'de RawValue>()? {
                let key = string(key.get()).ok_or_else(|| A::Error::custom("a bad name"))?;
                pairs.push((key, value.get()));
            }
            Ok(pairs)
        }
    }
    serde_json::Deserializer::from_str(json).deserialize_map(All)
}

/// A table whose first line names its columns. A row is one line: quoted fields may have commas
/// and quotes in them, but no line breaks.
pub struct Table {
    reader: Reader,
    names: Vec<String>,
    /// Column of each wanted name.
    columns: Vec<Option<usize>>,
    /// The fields of the present row, one after the other, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

impl Table {
    /// Reads the names of the columns.
    pub fn new(line: &[u8], wanted: &[String]) -> Result<Self, LineError> {
        let line = line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line);
        let mut table = Self {
            reader: Reader::new(),
            names: Vec::new(),
            columns: Vec::new(),
            text: Vec::new(),
            ends: Vec::new(),
        };
        let fields = table.split(line);
        let names: Vec<String> = {
            let names = table.fields(fields)?;
            names.iter().map(|name| name.trim().to_owned()).collect()
        };
        let column = |name: &String| names.iter().position(|column| column == name);
        table.columns = wanted.iter().map(column).collect();
        table.names = names;
        Ok(table)
    }

    /// The names of the columns.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    fn read(&mut self, line: &[u8]) -> Result<Row<'_>, LineError> {
        let fields = self.split(line);
        if fields != self.names.len() {
            return Err(LineError::Fields {
                found: fields,
                wanted: self.names.len(),
            });
        }
        let fields = self.fields(fields)?;
        let field = |column: &Option<usize>| Some(Field::Text(fields.get((*column)?)?));
        Ok(self.columns.iter().map(field).collect())
    }

    fn fields(&self, count: usize) -> Result<SmallVec<[&str; 16]>, LineError> {
        let mut start = 0;
        let mut fields = SmallVec::new();
        for end in self.ends.iter().take(count) {
            let field = self.text.get(start..*end).unwrap_or_default();
            fields.push(std::str::from_utf8(field).map_err(|_| LineError::NotUtf8)?);
            start = *end;
        }
        Ok(fields)
    }

    /// Splits one line into `text` and `ends`; returns the number of fields.
    fn split(&mut self, line: &[u8]) -> usize {
        // No field is longer than its line, and each takes at least its comma.
        self.text.resize(line.len() + 1, 0);
        self.ends.resize(line.len() + 2, 0);
        self.reader.reset();
        let (mut input, mut written, mut fields) = (line, 0, 0);
        loop {
            let (result, read, wrote, ended) =
                self.reader
                    .read_record(input, &mut self.text[written..], &mut self.ends[fields..]);
            // All of a line is read at once; an empty slice then says that it has ended.
            input = input.get(read..).unwrap_or_default();
            written += wrote;
            fields += ended;
            if result != ReadRecordResult::InputEmpty {
                return fields;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|name| (*name).to_owned()).collect()
    }

    fn shown(row: &Row<'_>) -> Vec<Option<String>> {
        let text = |field: &Option<Field<'_>>| Some(field.as_ref()?.text()?.into_owned());
        row.iter().map(text).collect()
    }

    fn some(list: &[Option<&str>]) -> Vec<Option<String>> {
        list.iter().map(|text| text.map(str::to_owned)).collect()
    }

    #[test]
    fn wanted_fields_of_an_object_are_found() {
        let wanted = names(&["a", "b", "c", "d", "e", "f"]);
        let line = br#"{"z":[{"a":1}],"b":"x\"y","a":1.50,"c":null,"d":"-","a":true,"f":"\u00e9"}"#;
        let row = json(line, &wanted).map(|row| shown(&row));
        let want = some(&[Some("true"), Some("x\"y"), None, None, None, Some("é")]);
        assert_eq!(row, Ok(want));
    }

    #[test]
    fn broken_objects_are_refused() {
        let wanted = names(&["a"]);
        for line in ["", "[1]", "{\"a\":1", "{\"a\":1} x", "{\"a\":}", "12"] {
            let row = json(line.as_bytes(), &wanted);
            assert!(matches!(row, Err(LineError::NotJson(_))), "{line}");
        }
        let row = json(b"{\"a\":\"\xff\"}", &wanted);
        assert_eq!(row.unwrap_err(), LineError::NotUtf8);
    }

    #[test]
    fn rows_of_a_table_have_the_wanted_columns() {
        let wanted = names(&["b", "x", "a"]);
        let table = Table::new("\u{feff}a, b ,c".as_bytes(), &wanted).unwrap();
        let mut rows = Rows::Csv(Box::new(table));
        let mut read = |line: &str| rows.read(line.as_bytes(), &wanted).map(|row| shown(&row));
        assert_eq!(read("1,2,3"), Ok(some(&[Some("2"), None, Some("1")])));
        assert_eq!(
            read("\"1,\"\"x\"\"\",,\"\""),
            Ok(some(&[None, None, Some("1,\"x\"")]))
        );
        let fields = |found| LineError::Fields { found, wanted: 3 };
        assert_eq!(read("1,2"), Err(fields(2)));
        assert_eq!(read("1,2,3,"), Err(fields(4)));
        assert_eq!(read("1,\"2,3"), Err(fields(2)));
    }
}
