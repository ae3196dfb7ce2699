package small

func b(a A) string {
	if a.c == nil {
		return "none"
	}
	return a.c.name
}
