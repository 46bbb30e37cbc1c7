//! Orders of an operator, and their answers.

use super::{Mode, Replicate};
use sluice_nvme::Status;
use sluice_redundancy::Members;
use sluice_uif::Io;

impl Replicate {
    /// Fails the set for good.
    pub(super) fn refuse(&mut self, message: String, io: &mut Io<'_>) {
        tracing::error!("{} does not serve: {message}", self.mode.name());
        (self.refused, self.error) = (self.set.take().is_some(), message);
        io.ready(Status::NAMESPACE_NOT_READY);
        self.answer_order(io);
        // Other writes end when the layers are done with them.
        for write in self.writes.iter_mut().filter(|write| write.waits) {
            write.waits = false;
            io.finish(write.held, Status::NAMESPACE_NOT_READY);
        }
    }

    /// Executes an order. Returns the status of the set.
    pub(super) fn execute(&mut self, text: &str) -> Result<String, String> {
        let mode = self.mode;
        let mirror = &mut self.set.as_mut().ok_or_else(|| self.error.clone())?.mirror;
        let all = mirror.status().members;
        let words: Vec<&str> = text.split_whitespace().collect();
        if mirror.asks() && !words.starts_with(&["copy"]) {
            return Err(self.error.clone());
        }
        match words.as_slice() {
            ["status"] => {}
            ["resync"] => mirror.bring_back(all, false),
            ["resync", "all"] => mirror.bring_back(all, true),
            ["resync", number] => mirror.bring_back(Members::one(member(all, number)?), false),
            // Of two members, one of which is the drive, it is the other.
            ["fail"] if mode == Mode::Copy => mirror.take_out(1)?,
            ["fail", number] => mirror.take_out(member(all, number)?)?,
            ["check"] => mirror.check(),
            ["copy", "from", number] => mirror.copy_from(member(all, number)?)?,
            _ => {
                let fail = if mode == Mode::Copy { "fail" } else { "fail N" };
                return Err(format!(
                    "there is no order `{text}`; there are status, resync, resync N, resync all, {fail}, check and copy from N"
                ));
            }
        }
        Ok(mirror.status().to_string())
    }
}

/// Parses the number of a member.
fn member(all: Members, number: &str) -> Result<usize, String> {
    let found = number.parse().ok().filter(|member| all.contains(*member));
    found.ok_or_else(|| format!("there is no member `{number}`; they are {all:?}"))
}
