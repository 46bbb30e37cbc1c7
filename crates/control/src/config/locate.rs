//! Positions in a TOML text: from a key path to a line, and from a position to its key.

use sluice_spec::{KeyPath, Step};
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A parsed TOML text that keeps the position of each key and value.
pub(super) struct Document<'a> {
    text: &'a str,
    table: Spanned<DeTable<'a>>,
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Self, toml::de::Error> {
        Ok(Self { text, table: DeTable::parse(text)? })
    }

    pub(super) fn table(&self) -> Spanned<DeTable<'a>> {
        self.table.clone()
    }

    /// Returns the line that contains a byte, counted from one.
    pub(super) fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().get(..offset).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }

    /// Returns the byte at which the last step of `path` that exists begins. A missing key is thus reported
    /// at the table that lacks it.
    pub(super) fn find(&self, path: &KeyPath) -> usize {
        let mut place = 0;
        let mut here: Option<&DeTable<'_>> = Some(self.table.get_ref());
        let mut list: Option<&DeValue<'_>> = None;
        for step in &path.0 {
            let next = match step {
                Step::Key(key) => here.and_then(|table| lookup(table, key)),
                Step::Index(index) => list.and_then(|list| element(list, *index)),
            };
            let Some((start, value)) = next else { break };
            place = start;
            here = value.as_table();
            list = Some(value);
        }
        place
    }

    /// Returns the byte of the first key named `key` at or after the start of `span`.
    pub(super) fn key_within(&self, span: &Range<usize>, key: &str) -> Option<usize> {
        let mut found = Vec::new();
        keys(self.table.get_ref(), &mut |name, at| {
            if name == key {
                found.push(at.start);
            }
        });
        // The span of a table header may end before the keys of the table do, so the end of `span` is not
        // compared.
        found.sort_unstable();
        found.into_iter().find(|start| *start >= span.start)
    }

    /// Returns the innermost key whose value is, or contains, `span`.
    pub(super) fn key_of(&self, span: &Range<usize>) -> Option<String> {
        let mut found: Option<(usize, String)> = None;
        values(self.table.get_ref(), &mut |name, value| {
            let contains = value.start <= span.start && span.end <= value.end;
            let tighter = found.as_ref().is_none_or(|(length, _)| value.len() <= *length);
            if contains && tighter {
                found = Some((value.len(), name.to_owned()));
            }
        });
        found.map(|(_, name)| name)
    }
}

/// Returns the value of a key in a table, with the byte at which the key begins. A list has a plural and a
/// singular name in a spec, of which the file uses one.
fn lookup<'t, 'a>(table: &'t DeTable<'a>, key: &str) -> Option<(usize, &'t DeValue<'a>)> {
    let named = |wanted: &str| table.iter().find(|(name, _)| name.get_ref() == wanted);
    // Where a table has both `path` and `paths`, `path` is a key of its own.
    let singular = key.strip_suffix('s').unwrap_or(key);
    named(key).or_else(|| named(singular)).map(|(name, value)| (name.span().start, value.get_ref()))
}

fn element<'t, 'a>(list: &'t DeValue<'a>, index: usize) -> Option<(usize, &'t DeValue<'a>)> {
    let value = list.as_array()?.get(index)?;
    Some((value.span().start, value.get_ref()))
}

/// Visits every key of a table and of all tables below it.
fn keys(table: &DeTable<'_>, visit: &mut impl FnMut(&str, Range<usize>)) {
    each(table, &mut |key, _| visit(key.get_ref(), key.span()));
}

/// Visits every key with the span of its value.
fn values(table: &DeTable<'_>, visit: &mut impl FnMut(&str, Range<usize>)) {
    each(table, &mut |key, value| visit(key.get_ref(), value.span()));
}

type Key<'a> = Spanned<std::borrow::Cow<'a, str>>;

fn each(table: &DeTable<'_>, visit: &mut impl FnMut(&Key<'_>, &Spanned<DeValue<'_>>)) {
    for (key, value) in table.iter() {
        visit(key, value);
        below(value.get_ref(), visit);
    }
}

fn below(value: &DeValue<'_>, visit: &mut impl FnMut(&Key<'_>, &Spanned<DeValue<'_>>)) {
    match value {
        DeValue::Table(table) => each(table, visit),
        DeValue::Array(list) => list.iter().for_each(|element| below(element.get_ref(), visit)),
        _ => {}
    }
}
