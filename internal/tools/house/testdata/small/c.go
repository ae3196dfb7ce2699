package small

import "example.com/small/internal/one"

// C is at the bottom.
type C struct{ name string }

// What is an identifier, so that this opening is none.
var What = one.New()
