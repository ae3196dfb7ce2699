package gitgate

// baseObjects are objects of upstream that checks needed, kept as long as the gate.
type baseObjects struct{ dir string }
