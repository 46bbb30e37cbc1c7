//! A label for people and for programs.

use serde::Serialize;
use sluice_metadata::{Copy, Device, Found, Label, Role};
use sluice_spec::error::ApiError;
use sluice_spec::size::Size;
use sluice_spec::table::{Table, pairs};
use sluice_wiring::label_problem as problem;
use std::path::Path;

/// A file or block device, with its label.
#[derive(Debug, Serialize)]
pub(super) struct View {
    path: String,
    /// `labelled`, `no label`, `damaged`, `unsupported`; of a member of a checked set `current` or `stale`.
    state: String,
    /// States of the two copies.
    copies: [&'static str; 2],
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<LabelView>,
}

#[derive(Debug, Serialize)]
struct LabelView {
    set: String,
    member: String,
    kind: &'static str,
    role: &'static str,
    /// Index of a member; none for a log.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    members: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<String>,
    epoch: u64,
    data_offset: u64,
    data_bytes: u64,
    device_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    chunk: Option<u64>,
}

impl View {
    pub(super) fn of(path: &Path) -> Result<Self, ApiError> {
        let device = Device::open(path).map_err(problem)?;
        let (bytes, copies) = (device.bytes().map_err(problem)?, device.copies().map_err(problem)?);
        let (state, label) = match device.found().map_err(problem)? {
            Found::Label(label) => ("labelled".to_owned(), Some(LabelView::of(&label))),
            Found::Missing => ("no label".to_owned(), None),
            Found::Damaged => ("damaged".to_owned(), None),
            Found::Unsupported(why) => (format!("unsupported: {why}"), None),
        };
        let copies = [copy(&copies.0[0]), copy(&copies.0[1])];
        Ok(Self { path: path.display().to_string(), state, copies, bytes, label })
    }

    pub(super) fn note_stale(&mut self, is_stale: bool) {
        self.state = if is_stale { "stale" } else { "current" }.to_owned();
    }

    fn pairs(&self) -> String {
        let mut lines = vec![
            ("path", self.path.clone()),
            ("state", self.state.clone()),
            ("copies", self.copies.join(", ")),
            ("device", Size(self.bytes).to_string()),
        ];
        if let Some(label) = &self.label {
            lines.extend([
                ("set", label.set.clone()),
                ("member", label.member.clone()),
                ("kind", label.kind.to_owned()),
                ("role", label.role()),
                ("epoch", label.epoch.to_string()),
                ("data", Size(label.data_bytes).to_string()),
            ]);
            lines.extend(label.chunk.map(|chunk| ("chunk", Size(chunk).to_string())));
        }
        pairs(&lines)
    }
}

impl LabelView {
    fn of(label: &Label) -> Self {
        let (role, index) = match label.role {
            Role::Data(index) => ("member", Some(index)),
            Role::Log => ("log", None),
        };
        Self {
            set: label.set.to_string(),
            member: label.member.to_string(),
            kind: label.kind.name(),
            role,
            index,
            members: label.members.iter().map(ToString::to_string).collect(),
            log: label.expected(Role::Log).map(|log| log.to_string()),
            epoch: label.epoch,
            data_offset: label.data_offset,
            data_bytes: label.data_bytes,
            device_bytes: label.device_bytes,
            chunk: Some(label.chunk).filter(|chunk| *chunk > 0),
        }
    }

    fn role(&self) -> String {
        match self.index {
            Some(index) => format!("member {index} of {}", self.members.len()),
            None => format!("log of {} members", self.members.len()),
        }
    }
}

fn copy(copy: &Copy) -> &'static str {
    match copy {
        Copy::Valid(_) => "good",
        Copy::Blank => "blank",
        Copy::Foreign => "foreign",
        Copy::Broken => "broken",
        Copy::Unsupported(_) => "unsupported",
    }
}

/// Formats each label on a page of its own.
pub(super) fn pages(views: &[View]) -> String {
    views.iter().map(View::pairs).collect::<Vec<_>>().join("\n")
}

/// Formats the labels of a set, a line each.
pub(super) fn table(views: &[View]) -> String {
    let mut table = Table::new(&["PATH", "STATE", "COPIES", "ROLE", "MEMBER", "EPOCH", "SET"]);
    for view in views {
        let of = |text: fn(&LabelView) -> String| view.label.as_ref().map_or_else(|| "-".to_owned(), text);
        table.row(vec![
            view.path.clone(),
            view.state.clone(),
            view.copies.join(", "),
            of(LabelView::role),
            of(|label| label.member.clone()),
            of(|label| label.epoch.to_string()),
            of(|label| label.set.clone()),
        ]);
    }
    table.text()
}
