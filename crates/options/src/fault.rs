//! A fault of options, with the key that it is at.

use std::fmt;

/// Step from a table to a value in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Key(&'static str),
    Index(usize),
}

/// Path from the outermost table to a value, outermost step first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyPath(pub Vec<Step>);

impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if position > 0 => write!(f, ".{key}")?,
                Step::Key(key) => f.write_str(key)?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// A fault of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub at: KeyPath,
    pub error: String,
    /// Remedy for the fault.
    pub hint: Option<String>,
}

impl Fault {
    pub fn at_key(key: &'static str, error: impl Into<String>) -> Self {
        Self { at: KeyPath(vec![Step::Key(key)]), error: error.into(), hint: None }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the fault as seen from the table that holds a list `key` with the faulty value at `index`.
    pub fn inside(mut self, key: &'static str, index: usize) -> Self {
        self.at.0.splice(0..0, [Step::Key(key), Step::Index(index)]);
        self
    }

    /// Returns the fault as seen from the table that holds the faulty table at `key`.
    pub fn under(mut self, key: &'static str) -> Self {
        self.at.0.insert(0, Step::Key(key));
        self
    }
}
