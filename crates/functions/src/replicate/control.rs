//! What an operator is told, and can want.

use super::{Manner, Replicate};
use sluice_nvme::Status;
use sluice_redundancy::Members;
use sluice_uif::Io;

impl Replicate {
    /// There cannot be such a set.
    pub(super) fn refuse(&mut self, words: String, io: &mut Io<'_>) {
        tracing::error!("{} does not serve: {words}", self.manner.name());
        (self.refused, self.trouble) = (self.set.take().is_some(), words);
        io.ready(Status::NAMESPACE_NOT_READY);
        self.answer_order(io);
        // The others end when the layers are done with them.
        for write in self.writes.iter_mut().filter(|write| write.waits) {
            write.waits = false;
            io.finish(write.held, Status::NAMESPACE_NOT_READY);
        }
    }

    /// True if an operator has to say which member is right.
    pub(super) fn asks(&self) -> bool {
        self.set.as_ref().is_some_and(|set| set.mirror.asks())
    }

    /// The set is there, and does nothing until an operator has said which member is right.
    pub(super) fn wait_for_order(&mut self, words: String, io: &mut Io<'_>) {
        tracing::error!("{} does not serve: {words}", self.manner.name());
        self.trouble = words;
        io.ready(Status::NAMESPACE_NOT_READY);
    }

    /// The set serves, or never will: who said which member is right is told.
    pub(super) fn answer_order(&mut self, io: &mut Io<'_>) {
        if std::mem::take(&mut self.ordered) {
            let status = self.set.as_ref().map(|set| set.mirror.status().to_string());
            io.answer(status.ok_or_else(|| self.trouble.clone()));
        }
    }

    /// An order, and the answer to it: how the set is doing.
    pub(super) fn obey(&mut self, text: &str) -> Result<String, String> {
        let manner = self.manner;
        let mirror = &mut self.set.as_mut().ok_or_else(|| self.trouble.clone())?.mirror;
        let all = mirror.status().members;
        let words: Vec<&str> = text.split_whitespace().collect();
        if mirror.asks() && !words.starts_with(&["copy"]) {
            return Err(self.trouble.clone());
        }
        match words.as_slice() {
            ["status"] => {}
            ["resync"] => mirror.bring_back(all, false),
            ["resync", "all"] => mirror.bring_back(all, true),
            ["resync", number] => mirror.bring_back(Members::one(member(all, number)?), false),
            // Of two, one of which is the drive, it is the other.
            ["fail"] if manner == Manner::Copy => mirror.take_out(1)?,
            ["fail", number] => mirror.take_out(member(all, number)?)?,
            ["check"] => mirror.check(),
            ["copy", "from", number] => mirror.copy_from(member(all, number)?)?,
            _ => {
                let fail = if manner == Manner::Copy { "fail" } else { "fail N" };
                return Err(format!(
                    "there is no order `{text}`; there are status, resync, resync N, resync all, {fail}, check and copy from N"
                ));
            }
        }
        Ok(mirror.status().to_string())
    }

    /// A member that was taken out is out when the log says so: else it would be in again after a restart, with
    /// whatever disk is in its place by then.
    pub(super) fn tell_of_leaving(&mut self, io: &mut Io<'_>) {
        if !self.leaving {
            return;
        }
        let answer = match self.set.as_ref().map(|set| (set.mirror.is_noted(), set.mirror.status())) {
            None => Err(self.trouble.clone()),
            Some((true, status)) => Ok(status.to_string()),
            Some((_, status)) if !status.log_is_broken => return,
            Some(_) => Err("it is out until a restart: mend the log, and say this again".into()),
        };
        self.leaving = false;
        io.answer(answer);
    }
}

/// A member by its number.
fn member(all: Members, number: &str) -> Result<usize, String> {
    let found = number.parse().ok().filter(|member| all.contains(*member));
    found.ok_or_else(|| format!("there is no member `{number}`; they are {all:?}"))
}
