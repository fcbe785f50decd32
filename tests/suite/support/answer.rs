//! What endpoints are called, and what they answer with.

use std::{
    error,
    fmt::{self, Display},
    sync::Arc,
};

/// What a call was answered with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    From(&'static str),
    Rejected(&'static str),
}

impl Answer {
    /// The endpoint that answered.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::From(name) | Self::Rejected(name) => name,
        }
    }
}

/// The error of an endpoint.
#[derive(Debug)]
pub(crate) struct Broken(pub(crate) &'static str);

impl Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is broken", self.0)
    }
}

impl error::Error for Broken {}

/// What an endpoint is called, and what it answers with.
pub(crate) trait Name: Clone + Display {
    type Answer;

    fn answer(self) -> Self::Answer;
    fn refuse(self) -> Self::Answer;

    /// The error of the endpoint.
    fn broken(&self) -> Broken {
        Broken("the endpoint")
    }
}

/// A name that answers with an [`Answer`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Text(&'static str);

impl Text {
    pub(crate) fn text(self) -> &'static str {
        self.0
    }
}

impl From<&'static str> for Text {
    fn from(name: &'static str) -> Self {
        Self(name)
    }
}

impl Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl Name for Text {
    type Answer = Answer;

    fn answer(self) -> Answer {
        Answer::From(self.0)
    }

    fn refuse(self) -> Answer {
        Answer::Rejected(self.0)
    }

    fn broken(&self) -> Broken {
        Broken(self.0)
    }
}

/// Names that are their own answers.
macro_rules! answers_with_itself {
    ($($name:ty),*) => {$(
        impl Name for $name {
            type Answer = Self;

            fn answer(self) -> Self {
                self
            }

            fn refuse(self) -> Self {
                self
            }
        }
    )*};
}
answers_with_itself!(u32, usize, Arc<str>);
