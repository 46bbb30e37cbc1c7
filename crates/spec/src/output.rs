//! Answers on standard output.

use crate::error::ApiError;
use clap::ValueEnum;
use serde::Serialize;
use std::io::{self, Write};

/// Form of the answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Form {
    /// Text for people
    #[default]
    Table,
    /// JSON for programs
    Json,
}

/// Standard output, in the chosen form.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    form: Form,
}

impl Output {
    pub fn new(form: Form) -> Self {
        Self { form }
    }

    /// Returns whether answers are text for people.
    pub fn is_table(self) -> bool {
        self.form == Form::Table
    }

    /// Writes an answer: as JSON, or as the text that `text` makes of it.
    pub fn answer<T: Serialize>(self, answer: &T, text: impl FnOnce(&T) -> String) -> Result<(), ApiError> {
        match self.form {
            Form::Json => self.json(answer),
            Form::Table => self.raw(text(answer).as_bytes()),
        }
    }

    pub fn json(self, value: &impl Serialize) -> Result<(), ApiError> {
        let text =
            serde_json::to_string_pretty(value).map_err(|error| ApiError::internal(error.to_string()))?;
        self.raw(format!("{text}\n").as_bytes())
    }

    pub fn raw(self, bytes: &[u8]) -> Result<(), ApiError> {
        let mut out = io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            // The reader has seen enough, as in `sluice drive list | head -1`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => written
                .map_err(|error| ApiError::internal(format!("cannot write to standard output: {error}"))),
        }
    }
}
