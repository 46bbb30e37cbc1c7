//! The two copies of a label on a device.

use crate::label::{Copy, Label, Unsupported};

/// Contents of both places of a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copies(pub [Copy; 2]);

/// Result of both copies together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Label(Box<Label>),
    /// There is no label.
    Missing,
    /// There was a label, and no copy of it is whole.
    Damaged,
    Unsupported(Unsupported),
}

impl Copies {
    /// Returns the label: of two valid copies the later one.
    pub fn found(&self) -> Found {
        let unsupported = self.0.iter().find_map(|copy| match copy {
            Copy::Unsupported(why) => Some(*why),
            _ => None,
        });
        if let Some(why) = unsupported {
            return Found::Unsupported(why);
        }
        match self.newest() {
            Some(index) => self.label(index).cloned().map_or(Found::Missing, |it| Found::Label(Box::new(it))),
            None if self.0.contains(&Copy::Broken) => Found::Damaged,
            None => Found::Missing,
        }
    }

    /// Returns the index of the copy that counts.
    pub(crate) fn newest(&self) -> Option<usize> {
        let sequence = |index: usize| self.label(index).map(|label| label.sequence);
        match (sequence(0), sequence(1)) {
            (Some(first), Some(second)) => Some(usize::from(second > first)),
            (Some(_), None) => Some(0),
            (None, Some(_)) => Some(1),
            (None, None) => None,
        }
    }

    /// Returns whether both copies are valid and equal.
    pub fn are_whole(&self) -> bool {
        self.label(0).is_some() && self.0[0] == self.0[1]
    }

    fn label(&self, index: usize) -> Option<&Label> {
        match &self.0[index] {
            Copy::Valid(label) => Some(label),
            _ => None,
        }
    }
}
