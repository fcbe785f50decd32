//! Prints the public API that a file of rustdoc's JSON describes, one item a line.

use public_api::Builder;
use std::{env, error::Error};

fn main() -> Result<(), Box<dyn Error>> {
    let file = env::args_os()
        .nth(1)
        .ok_or("the path of the JSON file is missing")?;
    let api = Builder::from_rustdoc_json(file)
        .omit_blanket_impls(true)
        .omit_auto_trait_impls(true)
        .omit_auto_derived_impls(true)
        .build()?;
    print!("{api}");
    Ok(())
}
