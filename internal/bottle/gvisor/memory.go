package gvisor

// memory is what the bottle uses, in bytes: the sentry's memory file, which
// backs all that the workload maps and, when the overlay is in memory, its
// files too. The file is asked for once; from then on a reading is one fstat.
func (s *shim) memory() (int64, error) {
	s.usageOnce.Do(func() { s.usageRec, s.usageErr = s.c.Sandbox.UsageFD() })
	if s.usageErr != nil {
		return 0, s.usageErr
	}
	_, _, total, err := s.usageRec.Fetch()
	return int64(total), err
}
