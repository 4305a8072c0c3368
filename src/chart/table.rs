//! A table of text: columns as wide as their widest cell.

use std::fmt;

/// On which side the cells of a column stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// Columns and rows. Shown with a line of dashes under the heads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &[(&str, Align)]) -> Self {
        let columns = columns.iter();
        Self {
            columns: columns
                .map(|(head, align)| ((*head).to_owned(), *align))
                .collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; a missing cell is an empty one.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// True when there are no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The cells of a column, by its head.
    pub fn column(&self, head: &str) -> Vec<&str> {
        let index = self.columns.iter().position(|(name, _)| name == head);
        let rows = self.rows.iter();
        rows.filter_map(|row| row.get(index?).map(String::as_str))
            .collect()
    }

    fn line<'a>(
        &self,
        f: &mut fmt::Formatter<'_>,
        widths: &[usize],
        cells: impl Iterator<Item = &'a str>,
    ) -> fmt::Result {
        let mut cells = cells.chain(std::iter::repeat(""));
        // Spaces are written before the next cell that is not empty: no line ends with any.
        let mut spaces = 0;
        for ((_, align), width) in self.columns.iter().zip(widths) {
            let cell = cells.next().unwrap_or_default();
            let rest = width - cell.chars().count();
            let (before, after) = match align {
                Align::Left => (0, rest),
                Align::Right => (rest, 0),
            };
            if cell.is_empty() {
                spaces += width;
            } else {
                write!(f, "{:1$}{cell}", "", spaces + before)?;
                spaces = after;
            }
            spaces += 2;
        }
        writeln!(f)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |(index, (head, _)): (usize, &(String, Align))| {
            let cells = self.rows.iter().filter_map(|row| row.get(index));
            let widths = cells.chain([head]).map(|cell| cell.chars().count());
            widths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = self.columns.iter().enumerate().map(width).collect();
        self.line(
            f,
            &widths,
            self.columns.iter().map(|(head, _)| head.as_str()),
        )?;
        let dashes: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
        self.line(f, &widths, dashes.iter().map(String::as_str))?;
        for row in &self.rows {
            self.line(f, &widths, row.iter().map(String::as_str))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&[
            ("limit", Align::Left),
            ("n", Align::Right),
            ("x", Align::Left),
        ]);
        table.row(["é".to_owned(), "10".to_owned(), "last".to_owned()]);
        table.row(["longer one".to_owned(), "7".to_owned()]);
        let want = "\
limit        n  x
----------  --  ----
é           10  last
longer one   7
";
        assert_eq!(table.to_string(), want);
        assert_eq!(table.column("n"), ["10", "7"]);
    }
}
