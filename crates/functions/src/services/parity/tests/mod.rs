//! Tests of the function.
