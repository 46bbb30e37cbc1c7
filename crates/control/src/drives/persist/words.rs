//! Descriptions of controllers' records, for the log.

use sluice_controller::{FormatState, PersistentRecord, SanitizeState};
use sluice_spec::words::count;

/// Returns the description of a record as a subject of "is not stored".
pub(super) fn of(what: &PersistentRecord) -> String {
    match what {
        PersistentRecord::Format(format) => match format.state {
            FormatState::Running => format!("that namespace {} is to be formatted", format.nsid),
            FormatState::Done => format!("that namespace {} was formatted", format.nsid),
            FormatState::Failed => format!("that a format of namespace {} failed", format.nsid),
        },
        PersistentRecord::Sanitize(sanitize) => match sanitize.state {
            SanitizeState::Running => "that a sanitize operation is to run".to_owned(),
            _ => "how a sanitize operation ended".to_owned(),
        },
        PersistentRecord::Reservations(of) => {
            let nsids: Vec<String> = of.iter().map(|(nsid, _)| nsid.to_string()).collect();
            format!("who has reservations of namespace {}", nsids.join(", "))
        }
        PersistentRecord::Uncorrectable { nsid, ranges } => {
            format!("that {} of namespace {nsid} cannot be read", count(ranges.len(), "range"))
        }
        PersistentRecord::Creation(creation) => format!("that a host creates namespace {}", creation.nsid),
        PersistentRecord::Deletion(nsids) => {
            format!("that a host deletes {}", count(nsids.len(), "namespace"))
        }
        PersistentRecord::Removal => "that deleted namespaces have gone".to_owned(),
        PersistentRecord::Attachment { nsid, .. } => format!("which controllers have namespace {nsid}"),
        PersistentRecord::PersistentEvents(_) => "what has happened to it".to_owned(),
        PersistentRecord::Losses(_) => "that acknowledged writes may be lost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_controller::{FormatRecord, PersistentEventRecord};

    #[test]
    fn nothing_is_shown_as_the_program_has_it() {
        let running = FormatRecord { nsid: 2, block_size: 512, state: FormatState::Running };
        for (what, words) in [
            (PersistentRecord::Format(running), "that namespace 2 is to be formatted"),
            (
                PersistentRecord::Reservations(vec![(1, None), (3, None)]),
                "who has reservations of namespace 1, 3",
            ),
            (
                PersistentRecord::Uncorrectable { nsid: 1, ranges: vec![[0, 512]] },
                "that 1 range of namespace 1 cannot be read",
            ),
            (PersistentRecord::Deletion(vec![4, 5]), "that a host deletes 2 namespaces"),
            (PersistentRecord::PersistentEvents(PersistentEventRecord::default()), "what has happened to it"),
        ] {
            assert_eq!(of(&what), words);
        }
    }
}
