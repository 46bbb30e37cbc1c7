//! Tables of text, whose columns are as wide as their cells.

/// Gap between two columns.
const GAP: &str = "  ";

/// A table with a line of titles. Columns of numbers are flush right.
#[derive(Debug)]
pub struct Table {
    titles: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<T: AsRef<str>>(titles: &[T]) -> Self {
        let titles = titles.iter().map(|title| title.as_ref().to_owned()).collect();
        Self { titles, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.titles.len(), "a cell for each title");
        self.rows.push(cells);
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn text(&self) -> String {
        let columns: Vec<Column> = (0..self.titles.len()).map(|index| Column::of(self, index)).collect();
        let line = |cells: &mut dyn Iterator<Item = &str>| {
            let cells: Vec<String> = cells.zip(&columns).map(|(cell, column)| column.pad(cell)).collect();
            cells.join(GAP).trim_end().to_owned() + "\n"
        };
        let titles = line(&mut self.titles.iter().map(String::as_str));
        let rows = self.rows.iter().map(|row| line(&mut row.iter().map(String::as_str)));
        std::iter::once(titles).chain(rows).collect()
    }
}

struct Column {
    width: usize,
    numbers: bool,
}

impl Column {
    fn of(table: &Table, index: usize) -> Self {
        let cells = || table.rows.iter().map(|row| row[index].as_str());
        let width =
            cells().chain([table.titles[index].as_str()]).map(|cell| cell.chars().count()).max().unwrap_or(0);
        let is_number = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit());
        let numbers = !table.rows.is_empty() && cells().all(|cell| cell == "-" || is_number(cell));
        Self { width, numbers }
    }

    fn pad(&self, cell: &str) -> String {
        let width = self.width;
        if self.numbers { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
    }
}

/// Formats lines of a name and a value, with aligned values.
pub fn pairs(pairs: &[(&str, String)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or(0) + 1;
    pairs.iter().map(|(name, value)| format!("{:<width$} {value}\n", format!("{name}:"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_fit_their_cells() {
        let mut table = Table::new(&["NAME", "SIZE", "STATE"]);
        table.row(vec!["a".into(), "64MiB".into(), "ready".into()]);
        table.row(vec!["long-name".into(), "1GiB".into(), "".into()]);
        assert_eq!(table.text(), "NAME        SIZE  STATE\na          64MiB  ready\nlong-name   1GiB\n");
        assert_eq!(Table::new(&["NAME", "SIZE"]).text(), "NAME  SIZE\n");
        let mut table = Table::new(&["NUMBER", "WORD"]);
        table.row(vec!["-".into(), "-".into()]);
        table.row(vec!["17".into(), "a".into()]);
        assert_eq!(table.text(), "NUMBER  WORD\n     -  -\n    17  a\n");
    }

    #[test]
    fn pairs_are_flush() {
        assert_eq!(pairs(&[("name", "a".into()), ("serial", "b".into())]), "name:   a\nserial: b\n");
    }
}
