//! What an operator is told, and can want.

use super::{Replicate, SECONDARY};
use sluice_nvme::Status;
use sluice_redundancy::Members;
use sluice_uif::Io;

impl Replicate {
    /// There cannot be such a set.
    pub(super) fn refuse(&mut self, words: String, io: &mut Io<'_>) {
        tracing::error!("replicate does not serve: {words}");
        self.refused = self.set.take().is_some();
        self.trouble = words;
        io.ready(Status::NAMESPACE_NOT_READY);
        // The others end when the layers are done with them.
        for write in self.writes.iter_mut().filter(|write| write.waits) {
            write.waits = false;
            io.finish(write.held, Status::NAMESPACE_NOT_READY);
        }
    }

    /// An order, and the answer to it: how the set is doing.
    pub(super) fn obey(&mut self, text: &str) -> Result<String, String> {
        let mirror = &mut self.set.as_mut().ok_or_else(|| self.trouble.clone())?.mirror;
        let secondary = Members::one(SECONDARY);
        match text.trim() {
            "status" => {}
            "resync" => mirror.bring_back(secondary, false),
            "resync all" => mirror.bring_back(secondary, true),
            "fail" => mirror.take_out(SECONDARY)?,
            "check" => mirror.check(),
            other => {
                return Err(format!(
                    "there is no order `{other}`; there are status, resync, resync all, fail and check"
                ));
            }
        }
        Ok(mirror.status().to_string())
    }
}
