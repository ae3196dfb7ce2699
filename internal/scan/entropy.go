package scan

// run counts the token characters at the end of a stream.
type run struct {
	length int
}

func (r *run) holds(fed int64) int64 {
	return fed - int64(r.length)
}

const maxRun = 4 << 10 // a longer run is not a token

func (l *stream) findRandom(e *Entropy, p []byte, end bool) error {
	least, bits := e.Length, e.Bits
	if least == 0 {
		least = 32
	}
	if bits == 0 {
		bits = 4.5
	}
	over := func(at int64) error {
		n := l.runs.length
		from := at - int64(n)
		l.runs = run{}
		if n < least || n > maxRun || from < l.base {
			return nil
		}
		if entropy(l.bytes(from, at)) < bits {
			return nil
		}
		return l.s.found(l, Finding{Rule: "high-entropy"}, from, at)
	}
	at := l.fed() - int64(len(p))
	for _, c := range p {
		if isWord(c) || c == '-' || c == '+' || c == '/' || c == '=' {
			l.runs.length++
			if l.runs.length > maxRun {
				l.runs.length = 0 // begins again: it is looked at in parts
			}
		} else if l.runs.length > 0 {
			if err := over(at); err != nil {
				return err
			}
		}
		at++
	}
	if end && l.runs.length > 0 {
		return over(at)
	}
	return nil
}
