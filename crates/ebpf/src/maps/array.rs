//! Array: elements that always exist.

use super::{MapDef, MapError, Update, Value};
use crate::insn::Size;
use crate::speculation::clamp;
use crate::words::Words;

pub(super) struct Array {
    values: Words,
    stride: usize,
    entries: usize,
}

impl Array {
    pub(super) fn new(def: &MapDef) -> Self {
        let (stride, entries) = (def.stride(), def.max_entries as usize);
        Self { values: Words::new(stride * entries), stride, entries }
    }

    pub(super) fn values(&self) -> &Words {
        &self.values
    }

    pub(super) fn find(&self, index: usize) -> Option<usize> {
        (index < self.entries).then(|| clamp(index, self.entries) * self.stride)
    }

    pub(super) fn update(&self, index: usize, value: Value<'_>, update: Update) -> Result<(), MapError> {
        let at = self.find(index).ok_or(MapError::Full)?;
        if update == Update::NoExist {
            return Err(MapError::Exists);
        }
        store_value(&self.values, at, self.stride, value);
        Ok(())
    }

    /// Returns the number of elements.
    pub(super) fn len(&self) -> usize {
        self.entries
    }
}

/// Writes a value over `stride` bytes, which are inside.
pub(super) fn store_value(values: &Words, at: usize, stride: usize, value: Value<'_>) {
    for word in 0..stride / 8 {
        values.store(at + word * 8, Size::B8, value(word));
    }
}
