//! What a drive's controller wants remembered, in words for the log.

use sluice_controller::{FormatState, Keep, SanitizeState};
use sluice_spec::words::count;

/// What it is, to stand before "is not remembered".
pub(super) fn of(what: &Keep) -> String {
    match what {
        Keep::Format(format) => match format.state {
            FormatState::Running => format!("that namespace {} is to be formatted", format.nsid),
            FormatState::Done => format!("that namespace {} was formatted", format.nsid),
            FormatState::Failed => format!("that a format of namespace {} failed", format.nsid),
        },
        Keep::Sanitize(sanitize) => match sanitize.state {
            SanitizeState::Running => "that a sanitize operation is to run".to_owned(),
            _ => "how a sanitize operation ended".to_owned(),
        },
        Keep::Reservations(of) => {
            let nsids: Vec<String> = of.iter().map(|(nsid, _)| nsid.to_string()).collect();
            format!("who has reservations of namespace {}", nsids.join(", "))
        }
        Keep::Uncorrectable { nsid, ranges } => {
            format!("that {} of namespace {nsid} cannot be read", count(ranges.len(), "range"))
        }
        Keep::Creation(creation) => format!("that a host creates namespace {}", creation.nsid),
        Keep::Deletion(nsids) => format!("that a host deletes {}", count(nsids.len(), "namespace")),
        Keep::Removal => "that deleted namespaces have gone".to_owned(),
        Keep::Attachment { nsid, .. } => format!("which controllers have namespace {nsid}"),
        Keep::History(_) => "what has happened to it".to_owned(),
        Keep::Losses(_) => "that acknowledged writes may be lost".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_controller::{FormatRecord, HistoryRecord};

    #[test]
    fn nothing_is_shown_as_the_program_has_it() {
        let running = FormatRecord { nsid: 2, block_size: 512, state: FormatState::Running };
        for (what, words) in [
            (Keep::Format(running), "that namespace 2 is to be formatted"),
            (Keep::Reservations(vec![(1, None), (3, None)]), "who has reservations of namespace 1, 3"),
            (
                Keep::Uncorrectable { nsid: 1, ranges: vec![[0, 512]] },
                "that 1 range of namespace 1 cannot be read",
            ),
            (Keep::Deletion(vec![4, 5]), "that a host deletes 2 namespaces"),
            (Keep::History(HistoryRecord::default()), "what has happened to it"),
        ] {
            assert_eq!(of(&what), words);
        }
    }
}
