//! Plan of a change of some rows: the cells to read, and the way to the new parities.

/// Some roles of a stripe, as a bit mask.
pub(super) type Roles = u32;

/// Way to the new content of the parities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Computation from the data of all columns (reconstruct-write).
    Rebuild,
    /// Computation from the old parities, and the old and new data of the columns that are written (read-modify-write).
    Modify,
    /// Computation from all old data, of which some has to be recovered first.
    Recover,
}

/// Cells to read, and the way to the parities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub reads: Roles,
    pub way: Way,
}

/// Plans the change of the columns `written` among `columns`, beside so many parities. The roles `missing`
/// cannot be read. The plan that reads fewer cells is taken, or with `renews` the one that computes all
/// parities. Returns none if more are missing than there are parities.
pub(super) fn change(
    columns: usize,
    parities: usize,
    written: Roles,
    missing: Roles,
    renews: bool,
) -> Option<Plan> {
    if missing.count_ones() as usize > parities {
        return None;
    }
    let data: Roles = (1 << columns) - 1;
    let parity: Roles = ((1 << parities) - 1) << columns;
    let others = data & !written;
    let rebuild = (others & missing == 0).then_some(Plan { reads: others, way: Way::Rebuild });
    // Without any parity nothing has to be read: all data is there.
    let kept = parity & !missing;
    let reads = if kept == 0 { 0 } else { written | kept };
    let modify = (written & missing == 0).then_some(Plan { reads, way: Way::Modify });
    let modify = modify.filter(|_| !renews);
    let least = [rebuild, modify].into_iter().flatten().min_by_key(|plan| plan.reads.count_ones());
    least.or_else(|| {
        let reads = recover(columns, parities, missing)?;
        Some(Plan { reads, way: Way::Recover })
    })
}

/// Returns the cells from which all others can be computed: as many as there are columns, data first. None if
/// too many are missing.
pub(super) fn recover(columns: usize, parities: usize, missing: Roles) -> Option<Roles> {
    let mut reads: Roles = 0;
    let there = (0..columns + parities).filter(|role| missing >> role & 1 == 0);
    there.take(columns).for_each(|role| reads |= 1 << role);
    (reads.count_ones() as usize == columns).then_some(reads)
}
