//! `sluice page`: the address of the web page.

use super::converse;
use sluice_api::PageView;
use sluice_api::client::Client;
use sluice_spec::error::ApiError;
use sluice_spec::output::Output;

pub(super) fn run(client: &Client, output: Output) -> Result<(), ApiError> {
    let view: PageView = converse(client.get("/v1/page"))?;
    output.answer(&view, |view| format!("{}\n", view.url))
}
